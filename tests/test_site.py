"""The site, built from scratch and read in a real browser: links, errors, requests, widths.

It takes two minutes, so it is not part of the default run: make test-site.
"""

import io
import os
import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin

import pytest
from PIL import Image

from tests.reports.conftest import browser  # noqa: F401 - a fixture

ROOT = Path(__file__).parent.parent
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
# In the browser: where links lead, what can be linked to, and whether the page is wider than the
# screen.
INSPECT = """() => ({
    links: [...document.links].map(a => a.href),
    ids: [...document.querySelectorAll('[id], a[name]')].map(e => e.id || e.name),
    pictures: [...document.images].filter(i => i.complete && !i.naturalWidth).map(i => i.src),
    scheme: document.body.dataset.mdColorScheme,
    overflow: document.documentElement.scrollWidth - document.documentElement.clientWidth,
})"""

pytestmark = pytest.mark.slow


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where `mkdocs build --strict` puts it, whose warnings are errors."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def address(folder):
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


@pytest.fixture
def visit(browser, address):  # noqa: F811
    """Opens pages of the site; whatever goes wrong meanwhile fails the test."""
    problems, contexts = [], []

    def start(viewport, scheme):
        context = browser.new_context(viewport=viewport, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: problems.append(f"{page.url}: {error}"))
        page.on("console", lambda said: problems.append(f"{page.url}: {said.text}"))

        def requested(request):
            if not request.url.startswith((address, "data:", "blob:")):
                problems.append(f"{page.url} requests {request.url}")

        def answered(response):
            if response.status >= 400:
                problems.append(f"{page.url}: {response.status} {response.url}")

        page.on("request", requested)
        page.on("response", answered)
        return page

    yield start
    for context in contexts:
        context.close()
    assert problems == []


def pages(folder):
    """All of them; 404.html is for servers that know where the site is."""
    found = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.html"))
    return [name for name in found if name != "404.html"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_pages_are_sound(folder, address, visit, viewport, scheme):
    page, seen = visit(viewport, scheme), {}
    for name in pages(folder):
        page.goto(address + name, wait_until="load")
        seen[address + name] = found = page.evaluate(INSPECT)
        assert found["pictures"] == [], name
        assert found["overflow"] <= 0, f"{name} is wider than the screen"
        if found["scheme"]:  # not in reports, which are pages of their own
            assert found["scheme"] == {"light": "default", "dark": "slate"}[scheme], name
    assert len(seen) > 30
    broken = [
        f"{name} links to {link}"
        for name, found in seen.items()
        for link in found["links"]
        if link.startswith(address) and not leads_somewhere(link, seen, folder, address)
    ]
    assert broken == []


def leads_somewhere(link, seen, folder, address):
    target, anchor = urldefrag(urljoin(address, link))
    target = target + "index.html" if target.endswith("/") else target
    if not (folder / unquote(target.removeprefix(address))).is_file():
        return False
    return not anchor or target not in seen or unquote(anchor) in seen[target]["ids"]


def test_search_finds_a_page(address, visit):
    page = visit(DESKTOP, "light")
    page.goto(address)
    page.get_by_placeholder("Search").click()
    page.keyboard.type("mix and match")  # "mix-" would be an invalid query
    page.locator(".md-search-result__link", has_text="Mix-and-match").first.wait_for(timeout=10_000)


def test_pictures_follow_the_chosen_palette(address, visit):
    """An SVG in an image sees the scheme of the page, also where the reader has chosen another."""
    page = visit(DESKTOP, "light")
    page.goto(address + "concepts.html")
    picture = page.locator("img[src$='concept-curriculum.svg']")
    box = {"light": (255, 255, 255), "dark": (0x26, 0x2B, 0x36)}  # fills of `.box` in the picture

    def colours():
        image = Image.open(io.BytesIO(picture.screenshot())).convert("RGB")
        return {colour for _, colour in image.getcolors(image.width * image.height)}

    assert box["light"] in colours()
    page.locator("label[title='Switch to dark mode']").click()
    for _ in range(50):  # colours fade
        if box["light"] not in colours():
            break
        page.wait_for_timeout(100)
    dark = colours()
    assert box["dark"] in dark
    assert box["light"] not in dark
