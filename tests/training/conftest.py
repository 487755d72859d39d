"""One tiny model for all tests of the torch tower."""

from pathlib import Path

import pytest
from transformers.utils import logging

from tests.training import tiny

logging.disable_progress_bar()


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_model(tmp_path_factory.mktemp("model") / "tiny", tiny.llama())
