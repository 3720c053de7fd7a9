"""Headless Chromium, the pages it opens, and where screenshots go."""

import os
import shutil
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

from budgetrec.report import write_report
from tests.report.folders import make_paper_study, make_run, make_study

SHOTS = Path("build/browser")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@pytest.fixture(scope="session")
def driver(tmp_path_factory):
    """Start Debian's Chromium through Debian's driver; nothing is fetched."""
    os.environ |= {"SE_OFFLINE": "true", "SE_AVOID_STATS": "true"}
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    started = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    started.set_script_timeout(60)
    yield started
    started.quit()


@pytest.fixture(scope="session")
def pages(tmp_path_factory):
    """Write a page of each kind."""
    root = tmp_path_factory.mktemp("pages")
    nasty = "</script><img src=x onerror=alert(1)>"
    make_run(root / "run", text="<b>item</b>")
    for seed, negatives in ((0, 64), (1, 128)):
        make_run(root / f"runs/k{negatives}", seed=seed, num_negatives=negatives)
    make_study(root / "studies/a", name="variance")
    make_study(root / "studies/b", name=nasty, text=nasty, captioned=True)
    make_paper_study(root / "paper")
    return {name: write_report(root / name) for name in ("run", "runs", "studies", "paper")}
