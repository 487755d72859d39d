"""The browser that the e2e ring drives: one on PATH, else Playwright's own.

`python -m tests.tools.browser` makes sure there is one, so that `make test` needs nothing before
it.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync"]
"""What it is started with."""

_NAMES = ("chromium", "google-chrome", "google-chrome-stable")
_DOWNLOAD = [sys.executable, "-m", "playwright", "install", "chromium"]
_INSTALL = ["apt-get", "install", "--yes", "--no-install-recommends", "chromium"]
_ADVICE = """\
The browser tests need Chromium, and it could not be installed from here. Do one of these:
  sudo apt-get install chromium
  .venv/bin/playwright install --with-deps chromium
"""


def find_browser() -> Path | None:
    """Return the browser to drive, or nothing where there is none."""
    on_path = next(filter(None, map(shutil.which, _NAMES)), None)
    return Path(on_path) if on_path else _playwrights_own()


def main() -> int:
    if not (find_browser() or _downloaded() or _installed()):
        sys.stderr.write(_ADVICE)
        return 1
    sys.stdout.write(f"Browser tests use {find_browser()}\n")
    return 0


def _playwrights_own() -> Path | None:
    with sync_playwright() as playwright:
        path = Path(playwright.chromium.executable_path)
    # Playwright brings the browser, but not the system's libraries that it is linked with.
    return path if path.is_file() and _succeeds([str(path), "--version"]) else None


def _downloaded() -> bool:
    # Some networks drop the download in silence: do not wait half a minute, five times over.
    timeout = {"PLAYWRIGHT_DOWNLOAD_CONNECTION_TIMEOUT": "5000"}
    return _succeeds(_DOWNLOAD, timeout) and _playwrights_own() is not None


def _installed() -> bool:
    if shutil.which("apt-get") is None:
        return False
    as_root = [] if os.geteuid() == 0 else ["sudo", "--non-interactive"]
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    return _succeeds([*as_root, "apt-get", "update"], quiet) and _succeeds(
        [*as_root, *_INSTALL], quiet
    )


def _succeeds(command: list[str], environment: dict[str, str] | None = None) -> bool:
    try:
        done = subprocess.run(
            command, env=os.environ | (environment or {}), stdout=sys.stderr, check=False
        )
    except FileNotFoundError:  # no sudo
        return False
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
