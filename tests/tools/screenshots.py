"""Pictures of every page: `python -m tests.tools.screenshots FOLDER`.

They come from a live studio with real runs.

Each page is taken light and dark, in English and Chinese, on a phone and on two wide screens.
`sheet-PAGE.png` shows all looks of a page next to each other. `--only` takes the pages whose
address holds some text.
"""

import argparse
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from playwright.sync_api import Browser, sync_playwright

from studio.db.session import open_engine, unit_of_work
from studio.settings import Settings
from tests.support.live_studio import Studio, free_port, get_run, prepare, stop_everything
from tests.support.pages import PAGES, furnish
from tests.support.waiting import wait_until
from tests.tools.browser import FLAGS, find_browser

SIZES = {1920: 1080, 1280: 900, 390: 844}
SEEDS = 2
"""Of the precision study: with one alone its report could judge nothing."""
THEMES = ("light", "dark")
LANGUAGES = {"en": "en-US", "zh": "zh-CN"}
"""The languages that a browser asks for, by their short name in file names."""
BLANK = """[...document.querySelectorAll(".plot:not([data-empty]):empty")]
    .filter((one) => one.offsetParent && one.getBoundingClientRect().top < innerHeight).length"""
"""How many charts on screen are not drawn yet. It is asked again and again from outside: pages let
nobody wait inside them for a text that is run as a script."""

QUICK: dict[str, Any] = {
    "base_model": "starter",
    "dataset": "starter",
    "adapter": {"kind": "full"},
    "optimisation": {"learning_rate": 3e-3, "max_steps": 40, "per_device_train_batch_size": 4},
    "data": {"max_length": 64},
    "evaluation": {"per_device_eval_batch_size": 64},
    "samples": {"prompts": 2, "max_new_tokens": 12},
}


def main() -> None:
    asked = argparse.ArgumentParser(prog="python -m tests.tools.screenshots", description=__doc__)
    asked.add_argument("folder", type=Path)
    asked.add_argument("--only", default="")
    given = asked.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    with used_studio() as studio, chromium() as browser:
        take_screenshots(
            browser, studio.url, given.folder, [path for path in PAGES if given.only in path]
        )


def take_screenshots(browser: Browser, url: str, folder: Path, pages: list[str]) -> None:
    for path in pages:
        names = []
        for language, theme, width in product(LANGUAGES, THEMES, SIZES):
            names.append(f"{_named(path)}-{language}-{theme}-{width}.png")
            look = (theme, width)
            take_screenshot(browser, url + path, folder / names[-1], look, language)
        _take_sheet(browser, folder, f"sheet-{_named(path)}.png", names)


def _take_sheet(browser: Browser, folder: Path, name: str, pictures: list[str]) -> None:
    """Write one picture of all looks of a page, cut at the bottom."""
    columns = "grid-template-columns: 5fr 4fr 2fr"
    crop = "max-height: 480px; object-fit: cover; object-position: top"
    style = f"body {{ display: grid; {columns}; gap: 8px }} img {{ width: 100%; {crop} }}"
    images = "".join(f'<img src="{picture}" alt="{picture}">' for picture in pictures)
    page = browser.new_page(viewport={"width": 1400, "height": 600})
    sheet = folder / "sheet.html"
    sheet.write_text(f"<style>{style}</style>{images}", encoding="utf-8")
    page.goto(sheet.resolve().as_uri())
    page.screenshot(path=folder / name, full_page=True)
    page.close()
    sheet.unlink()


@contextmanager
def used_studio() -> Iterator[Studio]:
    """Run a studio in which people have tried things: four runs, one too bold, and a study."""
    with TemporaryDirectory() as folder:
        studio = Studio(Path(folder), free_port(), warm=True, development=True)
        prepare(Settings(home=studio.home))
        studio.start()
        try:
            _try_things(studio)
            yield studio
        finally:
            stop_everything(studio)


@contextmanager
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(find_browser()), args=FLAGS)
        yield browser
        browser.close()


def take_screenshot(
    browser: Browser,
    url: str,
    to: Path,
    look: tuple[str, int],
    language: str = "en",
) -> None:
    """Take one page as it stands once its numbers are drawn."""
    theme, width = look
    context = browser.new_context(
        viewport={"width": width, "height": SIZES[width]},
        color_scheme="dark" if theme == "dark" else "light",
        reduced_motion="reduce",
        locale=LANGUAGES[language],
    )
    page = context.new_page()
    page.goto(url)
    page.wait_for_load_state("load")
    # Charts are drawn once they are on screen: all of the page is.
    height = page.evaluate("document.documentElement.scrollHeight")
    page.set_viewport_size({"width": width, "height": max(height, SIZES[width])})
    wait_until(lambda: page.evaluate(BLANK) == 0)
    page.screenshot(path=to, full_page=True)
    context.close()
    sys.stdout.write(f"{to} {to.stat().st_size / 1000:.0f} KB\n")


def _try_things(studio: Studio) -> None:
    bold = {"optimisation": QUICK["optimisation"] | {"learning_rate": 1.0}}
    tried = (
        ("quick try", {"precision": "bf16"}),
        ("the same in float32", {"precision": "fp32"}),
        ("far too fast", bold),
        ("another seed", {"optimisation": QUICK["optimisation"] | {"seed": 7}}),
    )
    for name, change in tried:
        answer = studio.api.post("/runs", json={"name": name, "recipe": QUICK | change})
        answer.raise_for_status()
    modes = ["fp32", "bf16"]
    plan = {"modes": modes, "seeds": SEEDS, "max_steps": 15}
    studio.api.post("/experiments/1/studies", json=plan).raise_for_status()
    studio.api.post("/datasets/1/stats", json={"model": "starter"}).raise_for_status()
    count = len(tried) + len(modes) * SEEDS
    wait_until(lambda: all(_is_over(studio, number) for number in range(1, count + 1)), seconds=900)
    engine = open_engine(studio.home / "studio.db")
    with unit_of_work(engine) as db:
        furnish(db, studio.home)
    engine.dispose()


def _is_over(studio: Studio, number: int) -> bool:
    return get_run(studio, number)["status"] in {"succeeded", "failed", "cancelled"}


def _named(path: str) -> str:
    return re.sub(r"\W+", "-", path).strip("-") or "runs"


if __name__ == "__main__":
    main()
