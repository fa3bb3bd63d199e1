"""A real browser for the pages, and a report."""

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from epcx.reports import replay
from epcx.reports.replay import Replay
from epcx.runs.run import RunFolder
from tests.factories import make_run
from tests.reports.factories import OpenPage, write

ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    names = ("chromium", "google-chrome", "chromium-browser")
    found = next((path for path in map(shutil.which, names) if path), None)
    if found is None:
        pytest.fail(f"The page cannot be tested: none of {', '.join(names)} is installed.")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Browser, tmp_path: Path) -> Iterator[OpenPage]:
    """Opens a replay, HTML or a file; errors, messages and network requests fail the test."""
    problems: list[str] = []

    with ExitStack() as contexts:

        def start(content: Replay | str | Path, **options: Any) -> Page:
            path = content if isinstance(content, Path) else tmp_path / "replay.html"
            if isinstance(content, Replay):
                replay.write(content, path)
            elif isinstance(content, str):
                path.write_text(content, "utf-8")
            context = browser.new_context(**options)
            contexts.callback(context.close)
            page = context.new_page()
            page.set_default_timeout(5000)
            page.on("pageerror", lambda error: problems.append(str(error)))
            page.on("console", lambda message: problems.append(message.text))
            page.on(
                "request",
                lambda request: (
                    problems.append(request.url)
                    if not request.url.startswith(("file:", "data:"))
                    else None
                ),
            )
            page.goto(path.as_uri())
            return page

        yield start
    assert problems == []


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[RunFolder]:
    """EPC twice and MADDPG twice, on Grassland at two populations of the paper."""
    folder = tmp_path_factory.mktemp("runs")
    grown = [
        make_run(folder / f"epc-{seed}", "grassland", "epc", ("3-2", "6-4"), seed, None, 2)
        for seed in (0, 1)
    ]
    scratch = [
        make_run(folder / f"maddpg-{p}", "grassland", "maddpg", (p,), matches=2)
        for p in ("3-2", "6-4")
    ]
    return [*grown, *scratch]


@pytest.fixture(scope="session")
def attention(tmp_path_factory: pytest.TempPathFactory) -> list[RunFolder]:
    """Att-MADDPG twice, at both populations."""
    folder = tmp_path_factory.mktemp("attention")
    return [
        make_run(folder / p, "grassland", "att-maddpg", (p,), matches=2) for p in ("3-2", "6-4")
    ]


@pytest.fixture(scope="session")
def page(
    runs: list[RunFolder], attention: list[RunFolder], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The report of EPC, MADDPG and Att-MADDPG."""
    return write(tmp_path_factory.mktemp("report"), [*runs, *attention])
