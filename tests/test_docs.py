"""The documents are true: Python blocks run, command lines are accepted, links lead somewhere.

The Python blocks of a document run in order, as in a notebook, in a folder that has `examples` and
`results` as a checkout has. A block whose first line is the name of a file, such as `# my_game.py`,
is saved as that file instead. A block that begins with `# pip install "epcx[clients]"` needs that
extra: `tests/clients` runs it. Blocks in other languages (`toml`, `yaml`, `bibtex`) are not run.
Blocks without a language are command lines, what they print, or outlines.
"""

import re
import shlex
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import epcx
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
LANGUAGES = {"", "python", "toml", "yaml", "bibtex"}
COMMAND_LINES = sorted(
    {
        line.strip()
        for text in DOCUMENTS.values()
        for line in re.findall(rf"\bepcx (?:{'|'.join(commands.MODULES)}) [^`';|>\n]*", text)
    }
)


def extra_of(block):
    """The extra that a block needs beyond those of the default tests, by its first line."""
    found = re.match(r'# pip install "epcx\[(.*)\]"\n', block)
    return found[1] if found else None


def with_blocks_of(extra):
    """The documents that have blocks which need this extra."""
    return [name for name, blocks in PYTHON.items() if extra in map(extra_of, blocks)]


def run_blocks(document, extra, folder):
    """All blocks of a document that need this extra."""
    for name in ("examples", "results"):
        (folder / name).symlink_to(ROOT / name)
    namespace = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "path", [str(folder), *sys.path])
        for block in PYTHON[document]:
            file = re.match(r"# (\w+\.py)\n", block)
            if file:
                (folder / file[1]).write_text(block)
            elif extra_of(block) == extra:
                exec(compile(block, document, "exec"), namespace)


@pytest.mark.parametrize("document", with_blocks_of(None))
def test_python_blocks_run(document, tmp_path):
    run_blocks(document, None, tmp_path)


def test_extras_of_blocks_are_known():
    """So that no block is left to nobody."""
    extras = {extra_of(block) for blocks in PYTHON.values() for block in blocks}
    assert extras == {None, "clients"}


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
def test_languages_of_blocks_are_known(document):
    """So that no block escapes by the way its language is written."""
    fences = re.findall(r"^ *```(.*)$", DOCUMENTS[document], re.M)
    assert set(fences[::2]) <= LANGUAGES
    assert set(fences[1::2]) <= {""}


def test_folders_and_targets_exist():
    """Published runs in command lines and Python, targets of make, and extras of pip."""
    text = "\n".join(DOCUMENTS.values())
    runs = set(re.findall(r"(?<![\w./])results/[\w-]+/[\w-]+", text))
    missing = {
        run for run in runs if not (ROOT / run).exists() and not (ROOT / f"docs/{run}.md").exists()
    }
    assert "results/food-collection/epc" in runs
    assert missing == set()
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"(?:^|`)make ([a-z-]+)", text, re.M))
    assert "demo" in targets
    assert targets <= set(re.findall(r"^([a-z-]+):", makefile, re.M))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = re.findall(r"pip\s+install \"(?:epcx|\.)\[([a-z,]+)\]", text)
    extras = {extra for names in named for extra in names.split(",")}
    assert "cuda" in extras
    assert extras <= set(project["optional-dependencies"])


def test_citation_is_of_this_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == epcx.__version__
    assert f"version = {{{epcx.__version__}}}" in DOCUMENTS["README.md"]
    assert citation["preferred-citation"]["title"] in DOCUMENTS["README.md"]


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
