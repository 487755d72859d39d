"""The pictures of the README and the docs: `make pictures`.

They come from a real studio: two runs on the starter dataset that differ in their precision only,
trained here for a few minutes. Each is taken light and dark, as WebP, in twice the pixels.
"""

import base64
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from playwright.sync_api import Browser, Page

from tests.support.live_studio import ROOT, Studio, free_port, get_run, stop_everything
from tests.support.waiting import wait_until
from tests.tools.screenshots import BLANK, THEMES, chromium

FOLDER = ROOT / "docs" / "pictures"
LARGEST = 200_000
"""Bytes of a picture: the front page of a repository is read on phones, too."""
PICTURES = {
    "result": ("/runs/1", 860),
    "compare": ("/compare?runs=1,2", 860),
    "numbers": ("/numbers?x=0.1", 860),
}
"""For each picture its page and the height of its window."""
WIDTH = 1280
LONGEST_SECONDS = 1800

RECIPE: dict[str, Any] = {
    "base_model": "starter",
    "dataset": "starter",
    "adapter": {"kind": "full"},
    "optimisation": {
        "learning_rate": 3e-3,
        "max_steps": 300,
        "per_device_train_batch_size": 16,
    },
    "data": {"max_length": 256},
    "evaluation": {"eval_steps": 0.1, "per_device_eval_batch_size": 64},
    "samples": {"prompts": 6, "between": 8, "max_new_tokens": 24},
}
"""The quick start, with the same steps on any machine, and enough to get most answers right."""
RUNS = {"Starter in float32": "fp32", "Starter in bfloat16": "bf16"}


def main() -> int:
    FOLDER.mkdir(exist_ok=True)
    with fresh_studio() as studio, chromium() as browser:
        for number, (name, precision) in enumerate(RUNS.items(), 1):
            recipe = RECIPE | {"precision": precision}
            studio.api.post("/runs", json={"name": name, "recipe": recipe}).raise_for_status()
            wait_until(partial(is_over, studio, number), seconds=LONGEST_SECONDS)
        return 0 if all([*_take_all(browser, studio.url)]) else 1


@contextmanager
def fresh_studio() -> Iterator[Studio]:
    """Run a studio whose home is made by its first start, as a new user's."""
    with TemporaryDirectory() as folder:
        studio = Studio(Path(folder), free_port(), warm=True)
        studio.start()
        try:
            yield studio
        finally:
            stop_everything(studio)


def is_over(studio: Studio, number: int) -> bool:
    return get_run(studio, number)["status"] in {"succeeded", "failed", "cancelled"}


def is_drawn(page: Page) -> bool:
    return bool(page.evaluate(BLANK) == 0)


def _take_all(browser: Browser, url: str) -> Iterator[bool]:
    """Take each picture in each theme. Tell of each whether it is small enough."""
    for (name, (path, height)), theme in product(PICTURES.items(), THEMES):
        context = browser.new_context(
            viewport={"width": WIDTH, "height": height},
            device_scale_factor=2,
            color_scheme="dark" if theme == "dark" else "light",
            reduced_motion="reduce",
            locale="en-US",
        )
        page = context.new_page()
        page.goto(url + path)
        page.wait_for_load_state("load")
        wait_until(partial(is_drawn, page))
        to = FOLDER / f"{name}{'-dark' * (theme == 'dark')}.webp"
        to.write_bytes(take_webp(page))
        context.close()
        size = to.stat().st_size
        sys.stdout.write(f"{to.relative_to(ROOT)} {size / 1000:.0f} KB\n")
        yield size <= LARGEST


def take_webp(page: Page, quality: int = 82) -> bytes:
    """Take what a window shows as WebP, which Playwright's own call does not offer."""
    session = page.context.new_cdp_session(page)
    answer = session.send("Page.captureScreenshot", {"format": "webp", "quality": quality})
    session.detach()
    return base64.b64decode(answer["data"])


if __name__ == "__main__":
    sys.exit(main())
