"""A stranger's config is looked at before anything is made from it."""

import json
from pathlib import Path

import pytest

from studio.errors import TrainingError
from studio.training.models import loader

pytestmark = pytest.mark.slow


def test_config_with_billion_layers_is_rejected(tmp_path: Path) -> None:
    told = {"model_type": "qwen2", "num_hidden_layers": 10**9}
    (tmp_path / "config.json").write_text(json.dumps(told))
    with pytest.raises(TrainingError) as refused:
        loader.load_config(str(tmp_path))

    assert (refused.value.code, refused.value.message) == (
        "absurd_config",
        "config.json sets num_hidden_layers to 1000000000, which is not valid.",
    )
