"""The Python examples of the documents run as they are written."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = [
    pytest.param(code, id=f"{document}-{i}")
    for document in ("README.md", "docs/games.md", "docs/training.md")
    for i, code in enumerate(
        re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(), re.S)
    )
]


@pytest.mark.parametrize("code", EXAMPLES)
def test_example(code):
    exec(compile(code, "example", "exec"), {})


def test_links_lead_somewhere():
    for document in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name} links to {target}"
