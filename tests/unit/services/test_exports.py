"""The life of an export, without a process."""

from pathlib import Path

import pytest
from sqlmodel import Session

from studio.db.states import TaskStatus
from studio.db.tasks import Export
from studio.protocols.events import Finished, PhaseChanged, Stopped
from studio.recipe.exports import EXPORT_FORMATS, ExportKind, explain_missing, number_format
from studio.recipe.precision import DType
from studio.services.exports import exports
from studio.services.tasks import tasks
from studio.services.tasks.exit_diagnosis import ProcessExit
from studio.weights.model_facts import ModelFacts
from studio.weights.weight_samples import WeightStats
from tests.support.factories import make_finished_run


@pytest.fixture
def export(db: Session) -> Export:
    """Make an export that is being made."""
    export = Export(run_id=make_finished_run(db).id or 0, kind="merged", dtype="float16")
    db.add(export)
    db.flush()
    tasks.start_work(export)
    return export


def test_export_progress_is_kept_until_next_report(export: Export) -> None:
    told = [PhaseChanged(name="converting", share=0.5), PhaseChanged(name="measuring after")]
    exports.apply_events(export, told, 7)

    assert (export.phase, export.share, export.events_offset) == ("measuring after", 0.5, 7)


def test_finished_export_reaches_full_progress(export: Export) -> None:
    exports.apply_events(
        export, [PhaseChanged(name="measuring after", share=0.9), Finished(metrics={})], 7
    )

    assert (export.status, export.phase, export.share) == (TaskStatus.SUCCEEDED, "", 1)


def test_externally_stopped_export_is_queued_again(export: Export) -> None:
    exports.apply_events(export, [Stopped(step=0)], 1)

    assert (export.status, export.phase, export.share) == (TaskStatus.QUEUED, "", 0)


def test_repeatedly_stopped_export_fails(export: Export) -> None:
    for _ in range(tasks.MAX_ATTEMPTS - 1):
        exports.apply_events(export, [Stopped(step=0)], 1)
        tasks.start_work(export)
    exports.apply_events(export, [Stopped(step=0)], 1)

    assert (export.status, export.error_code) == (TaskStatus.FAILED, "lost_worker")


def test_export_process_exiting_silently_fails(export: Export) -> None:
    tasks.close_exited(export, ProcessExit(exit_code=3), exports.PROCESS_NAME)

    assert (export.status, export.error_message) == (
        TaskStatus.FAILED,
        "The export process exited with code 3 and printed nothing.",
    )


def test_ended_export_ignores_process_exit(export: Export) -> None:
    export.status = TaskStatus.SUCCEEDED
    tasks.close_exited(export, ProcessExit(exit_code=None), exports.PROCESS_NAME)

    assert export.status is TaskStatus.SUCCEEDED


@pytest.mark.parametrize(
    ("dtype", "stored", "says"),
    [
        ("float32", "bfloat16", "No weight changes."),
        ("bfloat16", "bfloat16", "No weight changes."),
        ("bfloat16", "float16", "A weight changes by up to 0.39 %"),
        ("float16", "float32", "A weight changes by up to 0.049 %"),
    ],
)
def test_format_cost_depends_on_stored_precision(dtype: DType, stored: str, says: str) -> None:
    assert exports.describe_cost(dtype, stored).startswith(says)


@pytest.mark.parametrize(("kind", "is_refused"), [("full", True), ("adapter", False)])
def test_float16_overflow_is_rejected_only_for_full_export(
    kind: ExportKind,
    is_refused: bool,  # noqa: FBT001 -- a parameter of the test
) -> None:
    facts = ModelFacts(stats=WeightStats(sampled=9, largest=1e5, over_float16=1))

    assert bool(exports.explain_refusal(kind, "float16", facts)) is is_refused


def test_weights_that_int8_would_pass_through_float16_are_refused() -> None:
    facts = ModelFacts(stats=WeightStats(sampled=9, largest=1e5, over_float16=1))
    kinds: tuple[ExportKind, ...] = ("bitsandbytes", "torchao")

    assert [bool(exports.explain_refusal(kind, "int8", facts)) for kind in kinds] == [True, False]
    assert not exports.explain_refusal("bitsandbytes", "nf4", facts)


@pytest.mark.parametrize(
    ("kind", "dtype", "size"),
    [
        # 9,000 weights in layers with 100 outputs, and 1,000 others in 16 bits.
        ("bitsandbytes", "int8", 9000 + 100 * 4 + 2000),
        ("bitsandbytes", "nf4", 4642 + 2000),
        ("torchao", "int8", 9000 + 100 * 5 + 2000),
        ("gguf", "q8_0", 10625),
        ("full", "bfloat16", 20000),
    ],
)
def test_size_counts_only_linear_layers_as_quantised(
    kind: ExportKind, dtype: str, size: int
) -> None:
    assert number_format(kind, dtype).count_bytes(10_000, linear=9000, rows=100) == size


def test_family_that_cannot_be_read_back_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in EXPORT_FORMATS["gguf"].packages:
        (tmp_path / f"{name}.py").write_text("", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    row = number_format("gguf", "float16")
    reasons = [explain_missing("gguf", row, family, None)[0] for family in ("rwkv", "llama", "")]

    assert reasons == [
        "Nothing can read rwkv models back from this format to verify them.",
        "",
        "",
    ]


def test_program_is_found_where_it_is_configured(tmp_path: Path) -> None:
    program = tmp_path / "llama-quantize"
    program.write_text("#!/bin/sh\n", encoding="utf-8")
    absent = exports.find_llama_quantize(program)
    program.chmod(0o700)

    assert (absent, exports.find_llama_quantize(program)) == (None, program)
