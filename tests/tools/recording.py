"""The silent recording of the README: `make recording`.

A fresh studio, one press, a training run as it learns, its result, and a chat with the model: a
real run in a real browser, half a minute long. Waiting is sped up, and a caption says how much.
Frames are screenshots; ffmpeg joins them to one animated WebP, which GitHub shows in the page.
"""

import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from playwright.sync_api import Browser, Locator, Page, expect

from tests.tools.pictures import FOLDER, fresh_studio
from tests.tools.screenshots import chromium

RECORDING = FOLDER / "first-run.webp"
LARGEST = 2_000_000
LONGEST_SECONDS = 40
"""Of the recording: about half a minute."""
WINDOW = {"width": 1120, "height": 700}
SHOWN_WIDTH = 960
FRAMES_PER_SECOND = 8
PATIENCE_SECONDS = 300
QUALITY = 60
NO_FFMPEG = """\
The recording needs ffmpeg with its WebP encoder, and there is none on PATH.
  Debian or Ubuntu: sudo apt-get install ffmpeg
  macOS: brew install ffmpeg
"""
OVERLAY = """([caption, spot]) => {
  const show = (id, text, style) => {
    const box = document.getElementById(id) ?? document.documentElement.appendChild(
      Object.assign(document.createElement("div"), { id, ariaHidden: "true" }));
    box.textContent = text;
    Object.assign(box.style, { position: "fixed", zIndex: 9999, pointerEvents: "none" }, style);
  };
  show("film-caption", caption, { left: "50%", bottom: "20px", translate: "-50%",
    padding: "8px 16px", borderRadius: "8px", background: "#111d", color: "#fff",
    font: "600 17px system-ui, sans-serif", display: caption ? "block" : "none" });
  const [x, y] = spot ?? [0, 0];
  show("film-pointer", "", { left: `${x - 14}px`, top: `${y - 14}px`, width: "28px",
    height: "28px", borderRadius: "50%", background: "#e6780066", border: "2px solid #e67800",
    boxSizing: "border-box", display: spot ? "block" : "none" });
}"""
"""Draw a caption and where the pointer is: a browser without a screen draws none."""


@dataclass(slots=True)
class Film:
    """Frames with how long each is shown."""

    page: Page
    folder: Path
    frames: list[tuple[Path, float]] = field(default_factory=list)
    caption: str = ""
    spot: tuple[float, float] | None = None

    def add_frame(self, seconds: float) -> None:
        """Take what is to be seen now; what has not changed is shown for longer."""
        self.page.evaluate(OVERLAY, [self.caption, self.spot])
        content = self.page.screenshot()
        if self.frames and self.frames[-1][0].read_bytes() == content:
            path, shown = self.frames.pop()
        else:
            path, shown = self.folder / f"{len(self.frames):05}.png", 0.0
            path.write_bytes(content)
        self.frames.append((path, shown + seconds))

    def hold(self, seconds: float) -> None:
        """Film what stands still."""
        self.add_frame(seconds)

    def until(self, is_so: Callable[[], bool], caption: str, speed: int) -> None:
        """Film what happens until something is so, `speed` times as fast as it does."""
        self.caption = f"{caption} ({speed}x speed)"
        before = time.monotonic()
        end = before + PATIENCE_SECONDS
        while not is_so():
            if time.monotonic() > end:
                raise TimeoutError(f"Waited {PATIENCE_SECONDS} s for: {caption}")
            self.page.wait_for_timeout(1000 * speed / FRAMES_PER_SECOND)
            now = time.monotonic()
            self.add_frame((now - before) / speed)
            before = now

    def press(self, target: Locator) -> None:
        """Show the pointer on what is pressed, then press it."""
        target.scroll_into_view_if_needed()
        box = target.bounding_box()
        assert box is not None
        self.spot = (box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        self.hold(0.9)
        target.click()
        self.spot = None

    @property
    def seconds(self) -> float:
        return sum(seconds for _, seconds in self.frames)


def main() -> int:
    if shutil.which("ffmpeg") is None:
        sys.stderr.write(NO_FFMPEG)
        return 1
    with TemporaryDirectory() as folder:
        with (
            fresh_studio() as studio,
            chromium() as browser,
            _film(browser, studio.url, Path(folder)) as film,
        ):
            play(film)
        _join(film, RECORDING)
    size = RECORDING.stat().st_size
    sys.stdout.write(f"{RECORDING.name}: {film.seconds:.0f} s, {size / 1000:.0f} KB\n")
    return 0 if size <= LARGEST and film.seconds <= LONGEST_SECONDS else 1


def play(film: Film) -> None:
    """Walk from the first page to a chat with the trained model."""
    page = film.page
    page.goto("/")
    film.caption = "A fresh studio, on a CPU. One press."
    film.hold(2.5)
    film.press(page.get_by_role("button", name="Try it: train a model in about a minute"))
    page.wait_for_url(re.compile(r"/runs/\d+$"))
    head, answers = page.locator("#head"), page.locator("#live-answers .answer-list")
    film.until(answers.is_visible, "Training starts", speed=8)
    is_over = head.get_by_text("succeeded").is_visible
    film.until(is_over, "It learns: the loss falls, the answers change", speed=6)
    result = page.locator(".result")
    expect(result).to_be_visible()
    page.evaluate("scrollTo(0, 0)")
    film.caption = "What it learned: answers before and after"
    film.hold(5)
    film.press(result.get_by_role("link", name="Chat"))
    expect(page.locator(".chat[data-booted=done]")).to_be_visible()
    film.caption = "The base model beside yours, on a row it was not trained on"
    film.hold(1.5)
    film.press(page.locator(".chat-try").first)
    figures = page.locator("[data-side=run] [data-figures]").last
    film.until(lambda: bool(figures.inner_text()), "Both answer", speed=2)
    film.hold(4)


@contextmanager
def _film(browser: Browser, url: str, folder: Path) -> Iterator[Film]:
    context = browser.new_context(
        base_url=url,
        viewport={"width": WINDOW["width"], "height": WINDOW["height"]},
        color_scheme="light",
        reduced_motion="reduce",
        locale="en-US",
    )
    context.set_default_timeout(60_000)
    yield Film(context.new_page(), folder)
    context.close()


def _join(film: Film, to: Path) -> None:
    """Write the frames as one animated WebP that repeats."""
    lines = [f"file '{path}'\nduration {seconds:.3f}" for path, seconds in film.frames]
    listed = film.folder / "frames.txt"
    listed.write_text("\n".join([*lines, f"file '{film.frames[-1][0]}'", ""]), encoding="utf-8")
    filters = f"fps={FRAMES_PER_SECOND},scale={SHOWN_WIDTH}:-2:flags=lanczos"
    encoder = [
        "-c:v",
        "libwebp_anim",
        "-q:v",
        str(QUALITY),
        "-compression_level",
        "6",
        "-loop",
        "0",
    ]
    command = ["ffmpeg", "-v", "error", "-y", "-f", "concat", "-safe", "0", "-i", str(listed)]
    subprocess.run([*command, "-vf", filters, *encoder, "-loop", "0", str(to)], check=True)


if __name__ == "__main__":
    sys.exit(main())
