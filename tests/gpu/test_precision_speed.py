"""The speed of number formats on a GPU, side by side."""

import statistics
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig

from studio.protocols.events import Finished
from studio.protocols.run_dir import RunDir
from studio.runner.execution import execute_run
from studio.training.stop_handler import StopHandler
from tests.training import tiny

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU on this machine"),
]

WARM_UP = 5
"""Steps whose speed says nothing: kernels are still being chosen."""

LARGE = LlamaConfig(
    vocab_size=320,
    hidden_size=2048,
    intermediate_size=5504,
    num_hidden_layers=8,
    num_attention_heads=16,
    num_key_value_heads=16,
    max_position_embeddings=1024,
)
"""Wide enough that products, and not their launches, take the time."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_model(tmp_path_factory.mktemp("large") / "model", LARGE)


def trained(root: Path, model: Path, mode: str, **changes: object) -> RunDir:
    run = tiny.write_run(
        root,
        model,
        precision=mode,
        optimisation__max_steps=25,
        optimisation__per_device_train_batch_size=8,
        optimisation__learning_rate=1e-4,
        data__max_length=1024,
        **changes,
    )
    long = {
        "messages": [
            {"role": "user", "content": "Count."},
            {"role": "assistant", "content": " ".join(str(i) for i in range(600))},
        ]
    }
    tiny.write_rows(run.root / "train.jsonl", [long] * 64)
    execute_run(run.root, StopHandler())
    assert isinstance(tiny.last_event(run), Finished), tiny.last_event(run)
    return run


def speed(root: Path, model: Path, mode: str) -> float:
    """Return the tokens a second of a usual step."""
    return statistics.median(
        tiny.metric_values(trained(root, model, mode), "tokens_per_second")[WARM_UP:]
    )


@pytest.mark.skipif(
    torch.cuda.is_available() and torch.cuda.get_device_capability() < (8, 0),
    reason="this GPU has no bfloat16 and no TF32",
)
def test_narrower_matmul_formats_are_faster(model: Path, tmp_path: Path) -> None:
    full, tf32, bf16 = (
        speed(tmp_path / mode, model, mode) for mode in ("fp32", "fp32_tf32", "bf16")
    )

    assert bf16 >= 1.5 * full
    assert full < tf32 < 1.05 * bf16
