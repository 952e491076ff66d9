from collections.abc import Iterator
from pathlib import Path

import pytest

from reports.page import build_report

from .study_fixture import write_study


@pytest.fixture(scope="session")
def finished_study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a finished study of 16 trials and 60 steps. Not to be changed."""
    return write_study(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="session")
def report(finished_study: Path) -> Path:
    """The report of that study."""
    return build_report(finished_study)


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator:
    """A headless browser, closed with the module: Playwright allows one at a time."""
    from playwright.sync_api import sync_playwright

    arguments = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
    arguments += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=arguments)
        yield browser
        browser.close()
