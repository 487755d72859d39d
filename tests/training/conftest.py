"""One tiny model for all tests of training, and a disk that is soon full."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from transformers.utils import logging

from tests.training import tiny

logging.disable_progress_bar()


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_model(tmp_path_factory.mktemp("model") / "tiny", tiny.llama())


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """Mount a disk of one megabyte."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount")
    place = tmp_path / "small"
    place.mkdir()
    if not _done("mount", "-t", "tmpfs", "-o", "size=1m", "none", str(place)):
        pytest.skip("no disk can be mounted here")
    yield place
    assert _done("umount", "-l", str(place))


def _done(*command: str) -> bool:
    return subprocess.run(command, check=False, capture_output=True).returncode == 0
