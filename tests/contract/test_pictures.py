"""The pictures of the README and the docs: there, small, shown, and of pages that still exist."""

import re
from pathlib import Path

import pytest

from studio import resources
from tests.support.live_studio import ROOT
from tests.tools import pictures, recording

DOCS = ROOT / "docs"
EXPECTED = {f"{name}{suffix}.webp" for name in pictures.PICTURES for suffix in ("", "-dark")}
SHOWING = [ROOT / "README.md", DOCS / "README.md"]
LINK = re.compile(r"""(?:src|srcset)="([^"]+)"|\]\(((?!https?:)[^)#]+)""")


def links(document: Path) -> set[Path]:
    """Return the files of the repository that a document shows or links."""
    found = LINK.findall(document.read_text(encoding="utf-8"))
    return {(document.parent / (image or link)).resolve() for image, link in found}


def test_each_picture_exists_in_both_themes_and_is_small() -> None:
    sizes = {path.name: path.stat().st_size for path in pictures.FOLDER.iterdir()}
    film = sizes.pop(recording.RECORDING.name)

    assert set(sizes) == EXPECTED
    assert {name: size for name, size in sizes.items() if size > pictures.LARGEST} == {}
    assert film <= recording.LARGEST


@pytest.mark.parametrize("document", SHOWING, ids=["readme", "docs"])
def test_documents_link_only_files_that_exist(document: Path) -> None:
    assert {path for path in links(document) if not path.exists()} == set()


def test_every_picture_is_shown_in_readme_and_nothing_else_is_kept() -> None:
    kept = {*DOCS.rglob("*.png"), *DOCS.rglob("*.webp"), *DOCS.rglob("*.gif"), *DOCS.rglob("*.mp4")}

    assert kept == {path for path in links(ROOT / "README.md") if path.parent == pictures.FOLDER}


def test_recording_is_an_animation_of_about_half_a_minute() -> None:
    frames = durations(recording.RECORDING.read_bytes())

    assert len(frames) > 20
    assert 20 <= sum(frames) / 1000 <= recording.LONGEST_SECONDS


def durations(animation: bytes) -> list[int]:
    """Return how many milliseconds each frame of an animated WebP is shown."""
    found, position = [], 12
    while position < len(animation):
        size = int.from_bytes(animation[position + 4 : position + 8], "little")
        if animation[position : position + 4] == b"ANMF":
            found.append(int.from_bytes(animation[position + 20 : position + 23], "little"))
        position += 8 + size + size % 2
    return found


@pytest.mark.parametrize(
    "part",
    [
        "Try it: train a model in about a minute",
        'id="live-answers"',
        'class="answer-list"',
        'class="result panel',
        'class="chat-try"',
        "data-side=",
        "data-figures",
        'id="head"',
    ],
)
def test_recording_finds_what_it_presses_and_waits_for(part: str) -> None:
    templates = resources.templates_dir().rglob("*.html")

    assert any(part in path.read_text(encoding="utf-8") for path in templates)


def test_recording_without_ffmpeg_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "")

    assert recording.main() == 1
    assert "sudo apt-get install ffmpeg" in capsys.readouterr().err
