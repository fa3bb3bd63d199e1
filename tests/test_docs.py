"""The Python examples of the documents run as they are written."""

import re
from pathlib import Path

import pytest

from tests.made import made_run

ROOT = Path(__file__).parent.parent
EXAMPLES = [
    pytest.param(code, id=f"{document}-{i}")
    for document in ("README.md", "docs/games.md", "docs/training.md", "docs/evaluation.md")
    for i, code in enumerate(
        re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(), re.S)
    )
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where examples run: with the run that some of them load."""
    folder = tmp_path_factory.mktemp("examples")
    made_run(folder / "runs" / "flock", "grassland", "epc", ("1-1", "2-1"), matches=None)
    return folder


@pytest.mark.parametrize("code", EXAMPLES)
def test_example(code, folder, monkeypatch):
    monkeypatch.chdir(folder)
    exec(compile(code, "example", "exec"), {})


def test_links_lead_somewhere():
    for document in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name} links to {target}"
