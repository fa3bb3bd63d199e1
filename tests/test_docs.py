"""The documents are true: Python blocks run, command lines are accepted, links lead somewhere.

The Python blocks of a document run in order, as in a notebook, in a folder that has `examples` and
`results` as a checkout has. A block whose first line is the name of a file, such as `# my_game.py`,
is saved as that file instead. Blocks in other languages (`text`, `toml`, ...) are not run.
"""

import re
import shlex
import sys
from pathlib import Path

import pytest

from epcx import commands, options
from epcx.errors import InputError

ROOT = Path(__file__).parent.parent
DOCUMENTS = {
    path.relative_to(ROOT).as_posix(): path.read_text()
    for path in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
}
PYTHON = {
    name: re.findall(r"^```python\n(.*?)^```", text, re.S | re.M)
    for name, text in DOCUMENTS.items()
}
COMMAND_LINES = sorted(
    {
        line.strip()
        for text in DOCUMENTS.values()
        for line in re.findall(rf"\bepcx (?:{'|'.join(commands.MODULES)}) [^`';|>\n]*", text)
    }
)


@pytest.mark.parametrize("document", [name for name, blocks in PYTHON.items() if blocks])
def test_python_blocks_run(document, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    for folder in ("examples", "results"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    namespace = {}
    for block in PYTHON[document]:
        file = re.match(r"# (\w+\.py)\n", block)
        if file:
            (tmp_path / file[1]).write_text(block)
        else:
            exec(compile(block, document, "exec"), namespace)


@pytest.mark.parametrize("line", COMMAND_LINES)
def test_command_line_is_accepted(line):
    """Names and values of all options; what stands for something, such as RUN, may be missing."""
    _, name, *words = shlex.split(re.sub(r"\$\w+", "1", line), comments=True)
    command = commands.find(name)
    types = {}
    try:
        if hasattr(command, "types"):
            types = command.types(options.read(command, words, strict=False))
        options.read(command, words, types)
    except options.HelpRequested:
        pass
    except InputError as error:
        if not re.match(f"{name} needs [A-Z]|there is no config file", str(error)):
            raise


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_somewhere(document):
    for target, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", DOCUMENTS[document]):
        path = (ROOT / document).parent / target if target else ROOT / document
        assert path.exists(), f"{document} links to {target}"
        if anchor:
            assert anchor in anchors(path.read_text()), f"{document} links to {target}#{anchor}"


def anchors(text):
    """Of all headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", text, flags=re.S | re.M), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
