"""Runs that go wrong for real, and what their owners read."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from studio.protocols.events import Failed
from studio.protocols.run_dir import RunDir
from studio.runner.execution import execute_run
from studio.training.stop_handler import StopHandler
from tests.training import tiny

pytestmark = pytest.mark.slow

STRICT = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('System turns are not known') }}"
    "{% endif %}" + tiny.WITHOUT_MARKS
)


def failed(run: RunDir) -> Failed:
    assert execute_run(run.root, StopHandler()) == 1
    (told,) = tiny.events_of(run, Failed)
    return told


def with_rows(root: Path, model: Path, rows: list[dict[str, Any]], **changes: object) -> RunDir:
    run = tiny.write_run(root, model, **changes)
    tiny.write_rows(run.root / "train.jsonl", rows)
    return run


@contextmanager
def before_each_layer(does: Callable[[nn.Module, Any], Any]) -> Iterator[None]:
    """Have something happen in every step, where layers compute."""
    hook = register_module_forward_pre_hook(does)
    try:
        yield
    finally:
        hook.remove()


def turn(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def test_non_conversation_row_is_named(model: Path, tmp_path: Path) -> None:
    rows = [*tiny.rows()[:6], {"messages": [{"role": "user", "content": None}]}]

    assert failed(with_rows(tmp_path / "run", model, rows)).model_dump(exclude={"seq", "at"}) == {
        "kind": "failed",
        "code": "bad_row",
        "message": (
            "Row 7 of the training data (line 7 of its file) is not a conversation: turn 1 has "
            "no text in content."
        ),
        "hint": "Fix that row and import the dataset again.",
        "facts": {"line": 7},
    }


def test_invalid_json_row_is_named_by_line(model: Path, tmp_path: Path) -> None:
    run = tiny.write_run(tmp_path / "run", model)
    good = json.dumps(tiny.rows()[0])
    (run.root / "train.jsonl").write_text(f"{good}\n\n{good[:20]}\n", encoding="utf-8")

    told = failed(run)
    assert told.code == "bad_row"
    assert told.message.startswith(
        "Row 2 of the training data (line 3 of its file) is not a conversation: "
        "it is not valid JSON ("
    )


def test_row_rejected_by_template_is_named(tmp_path: Path) -> None:
    picky = tmp_path / "picky"
    tiny.write_model(picky, tiny.llama())
    tiny.tokenizer(STRICT).save_pretrained(picky)
    rows: list[dict[str, Any]] = tiny.rows()[:12]
    rows[4] = {"messages": [turn("system", "Be kind."), *rows[4]["messages"]]}

    told = failed(with_rows(tmp_path / "run", picky, rows))
    assert (told.code, told.message) == (
        "bad_row",
        (
            "Row 5 of the training data is rejected by the model's chat template: System turns "
            "are not known."
        ),
    )


def test_rows_without_answers_fail_run(model: Path, tmp_path: Path) -> None:
    rows = [{"messages": [turn("user", f"Anybody {i}?")]} for i in range(10)]

    told = failed(with_rows(tmp_path / "run", model, rows))
    assert (told.code, told.message) == (
        "all_labels_masked",
        "None of the 8 rows of the training data has an answer to train on.",
    )


def test_truncated_answers_are_counted_in_error(model: Path, tmp_path: Path) -> None:
    rows = [{"messages": [turn("user", "why? " * 40), turn("assistant", "So.")]}] * 10

    told = failed(with_rows(tmp_path / "run", model, rows, data__max_length=32))
    assert (told.code, told.message) == (
        "sequence_too_long",
        (
            "8 of 8 rows of the training data are truncated to 32 tokens, before their answers "
            "begin."
        ),
    )
    assert told.hint == (
        f'Raise "Max sequence length": the longest row has {told.facts["longest"]} tokens.'
    )


def test_gpu_out_of_memory_is_reported(model: Path, tmp_path: Path) -> None:
    """No GPU is asked for: what CUDA would raise in a step is raised in a real step."""

    def full(_layer: nn.Module, _given: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")

    run = tiny.write_run(tmp_path / "run", model)
    with before_each_layer(full):
        told = failed(run)

    assert (told.code, told.message) == ("out_of_memory", "The GPU ran out of memory.")


def test_cpu_out_of_memory_is_reported(model: Path, tmp_path: Path) -> None:
    def full(_layer: nn.Module, _given: object) -> None:
        torch.empty(2**48)

    run = tiny.write_run(tmp_path / "run", model)
    with before_each_layer(full):
        told = failed(run)

    assert (told.code, told.message) == ("out_of_memory", "This machine ran out of memory.")


def widened(layer: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
    return tuple(one.double() for one in given) if isinstance(layer, nn.Linear) else None


def normalised(_layer: nn.Module, _given: object) -> None:
    nn.functional.layer_norm(torch.zeros(1, 4, dtype=torch.float64), (4,), torch.ones(4))


@pytest.mark.parametrize("does", [widened, normalised])
def test_dtype_mismatch_errors_share_one_message(
    model: Path, tmp_path: Path, does: Callable[[nn.Module, Any], Any]
) -> None:
    run = tiny.write_run(tmp_path / "run", model)
    with before_each_layer(does):
        told = failed(run)

    assert (told.code, told.message) == (
        "dtype_mismatch",
        "Two number formats were mixed where this model allows only one.",
    )


def test_weights_of_other_model_are_reported(tmp_path: Path) -> None:
    other = tmp_path / "other"
    tiny.write_model(other, tiny.llama())
    config = json.loads((other / "config.json").read_text(encoding="utf-8"))
    (other / "config.json").write_text(json.dumps(config | {"intermediate_size": 96}))

    told = failed(tiny.write_run(tmp_path / "run", other))
    assert (told.code, told.message) == (
        "incompatible_checkpoint",
        "The saved weights have different shapes or names than this model.",
    )


def test_unknown_error_shows_exception_message(model: Path, tmp_path: Path) -> None:
    def fail(_layer: nn.Module, _given: object) -> None:
        raise ZeroDivisionError("a bug of somebody's")

    run = tiny.write_run(tmp_path / "run", model)
    with before_each_layer(fail):
        told = failed(run)

    assert (told.code, told.message) == ("crashed", "ZeroDivisionError: a bug of somebody's.")
