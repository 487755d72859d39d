"""The commands of the how-to on backups."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.guides.reader import Reader, blocks
from tests.support.live_studio import Studio

pytestmark = pytest.mark.slow


def test_back_up_and_move(starter_home: Path, tmp_path: Path, reader: Reader) -> None:
    backup, restore, move = blocks("back-up-and-move")
    own = replace(reader, studio=Studio.copied(starter_home, tmp_path / "home"))
    printed = own.shell(backup + restore + move)

    assert f"{tmp_path / 'moved'} is accessible to you only" in printed
    assert (tmp_path / "moved" / "models" / "starter" / "config.json").exists()
    assert not (tmp_path / "restored").exists()
