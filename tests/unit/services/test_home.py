"""The folder: one studio at a time, and clear words when it cannot be used."""

from pathlib import Path

import pytest

from studio.errors import ConflictError, UnavailableError
from studio.services import home
from studio.settings import Settings


def test_a_second_studio_on_one_folder_is_refused(settings: Settings) -> None:
    with (
        home.only_one(settings, "web", "http://127.0.0.1:8000/"),
        pytest.raises(ConflictError) as refused,
        home.only_one(settings, "web", "http://127.0.0.1:8001/"),
    ):
        pytest.fail("Two studios share a folder.")

    assert "http://127.0.0.1:8000/" in refused.value.message
    assert "STUDIO_HOME" in refused.value.hint


def test_the_lock_goes_with_its_holder(settings: Settings) -> None:
    with home.only_one(settings, "web", "first"):
        pass
    with home.only_one(settings, "web", "second"):
        assert "second" in (settings.home / "web.lock").read_text()


def test_web_and_worker_share_a_folder(settings: Settings) -> None:
    with home.only_one(settings, "web", "a"), home.only_one(settings, "worker", "b"):
        assert (settings.home / "worker.lock").exists()


def test_a_folder_that_is_a_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UnavailableError) as refused:
        home.open_home(Settings(home=tmp_path / "file"))

    assert refused.value.hint == "Choose another folder with STUDIO_HOME."
