"""Pages of the site that are files outside docs/, and links to them, for MkDocs (mkdocs.yml).

Links in documents are written for the repository, so that they work there. In the site a document
such as CHANGELOG.md is a page, and so are examples and notebooks; other files are copied.
"""

import json
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
LINK = re.compile(r"(?<=\]\()(?P<target>[^)#:\s]+)(?P<anchor>#[^)\s]*)?(?=\))")
DOCUMENTS = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "README.md": "index.md",
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds pages for documents, examples and notebooks, and files that documents link to."""
    for name in ("CHANGELOG.md", "CONTRIBUTING.md"):
        files.append(File.generated(config, site_path(name), content=(ROOT / name).read_text()))
    for path in sorted(ROOT.glob("examples/*.py")):
        if path.stem != "__init__":
            name = path.relative_to(ROOT).as_posix()
            content = f"# {name}\n\n```python\n{path.read_text()}```\n"
            files.append(File.generated(config, site_path(name), content=content))
    for path in sorted(ROOT.glob("examples/notebooks/*.ipynb")):
        name = path.relative_to(ROOT).as_posix()
        files.append(File.generated(config, name, abs_src_path=str(path)))
        files.append(File.generated(config, site_path(name), content=notebook_page(path)))
    for page in files.documentation_pages():
        for target in re.finditer(LINK, page.content_string):
            name = repository_path(page.src_uri, target["target"])
            added = files.get_file_from_path(site_path(name))
            if not name.startswith("docs/") and not added and (ROOT / name).is_file():
                for path in with_its_files(ROOT / name):
                    place = path.relative_to(ROOT).as_posix()
                    files.append(File.generated(config, place, abs_src_path=str(path)))
    return files


def with_its_files(path: Path) -> list[Path]:
    """A file; of a report also the tables, figures and replays that its page links to."""
    if path.name != "index.html":
        return [path]
    return sorted(found for found in path.parent.rglob("*") if found.is_file())


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Turns links between files of the repository into links between pages."""
    here = posixpath.dirname(page.file.src_uri)

    def rewrite(link: re.Match[str]) -> str:
        target = site_path(repository_path(page.file.src_uri, link["target"]))
        if target == page.file.src_uri:  # a notebook to download, on its own page
            return link[0]
        return posixpath.relpath(target, here or ".") + (link["anchor"] or "")

    return re.sub(LINK, rewrite, markdown)


def notebook_page(path: Path) -> str:
    """A notebook as Markdown: its cells without outputs."""
    cells = json.loads(path.read_text())["cells"]
    texts = ["".join(cell["source"]) for cell in cells]
    blocks = [
        text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```"
        for cell, text in zip(cells, texts, strict=True)
    ]
    download = f"This page is a notebook: [{path.name}]({path.name}), to download and run."
    return "\n\n".join([blocks[0], download, *blocks[1:]])


def site_path(name: str) -> str:
    """Where the site has a file of the repository."""
    if name.startswith("docs/"):
        return name.removeprefix("docs/")
    if name.startswith("examples/"):
        return re.sub(r"\.(py|ipynb)$", ".md", name)
    return DOCUMENTS.get(name, name)


def repository_path(page: str, target: str) -> str:
    """The file of the repository that a link on a page names."""
    sources = {site: name for name, site in DOCUMENTS.items() if name != "README.md"}
    outside = page in sources or page.startswith("examples/")
    source = sources.get(page, page) if outside else f"docs/{page}"
    return posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
