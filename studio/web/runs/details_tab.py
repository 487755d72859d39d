"""The Details tab of a run: requested and actual settings, history, log and recipe."""

import signal
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response
from sqlmodel import Session

from studio.db.states import RunStatus
from studio.db.tables import Attempt, Run, RunEvent
from studio.protocols.run_dir import RunDir
from studio.recipe import yaml
from studio.recipe.dotted_keys import flatten
from studio.recipe.precision import PRECISIONS
from studio.services.estimates import memory, run_progress
from studio.services.runs import attempts, run_events, runs
from studio.services.runs.attempts import LOST
from studio.web.http.deps import DB, Config
from studio.web.i18n import formatting
from studio.web.rendering.render import block
from studio.web.runs.run_frame import tab_page

router = APIRouter(include_in_schema=False)


FACT_GROUPS = {
    "Precision": {
        "weights": "Weights",
        "kept_in_float32": "Kept in float32",
        "rest": "Non-quantised weights",
        "trained": "Trained weights",
        "gradients": "Gradients",
        "optimizer_states": "Optimizer states",
        "master": "Master copy of the weights",
        "matmul": "Inputs of matrix products",
        "compute": "Results of matrix products",
        "matmul_emulated": "Matrix products emulated",
        "autocast": "Autocast",
        "scaler": "Loss scaling",
    },
    "Optimisation": {
        "optimizer": "Optimizer",
        "effective_batch_size": "Effective batch size",
        "head": "Output layer",
        "steps_in_time": "Steps that fit in the time limit",
        "seed": "Seed",
    },
    "Data": {
        "train_rows": "Training rows",
        "train_examples": "Training examples",
        "train_tokens": "Training tokens",
        "validation_rows": "Validation rows",
        "dropped_rows": "Dropped rows",
        "truncated_rows": "Truncated rows",
        "lost_entities": "Entities truncated, or inside a token",
        "longest_example": "Longest example, in tokens",
        "longest_answer": "Longest answer, in tokens",
    },
    "Model": {
        "parameters": "Parameters",
        "trainable_parameters": "Trained parameters",
        "trained_tensors": "Trained tensors",
        "weight_bytes": "Memory of the weights",
        "attention": "Attention",
        "attention_kernel": "Attention kernel",
    },
    "Format of each layer type": {},
    "Machine": {"device": "Device", "device_name": "Device name"},
    "Software": {},
    "Other": {},
}
"""The titles of reported values, by group. Values without a title keep their own names."""

_NESTED = {"formats": "Format of each layer type", "versions": "Software"}
"""The groups of values that a run reports as a dictionary."""

_TOLD_ELSEWHERE = {"peak_memory"}
"""How memory was measured: a sentence above the table says so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A requested value beside the actual one."""

    name: str
    requested: str
    actual: str
    differs: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FactGroup:
    """Values that belong together."""

    title: str
    facts: list[Fact]


def group_facts(run: Run) -> list[FactGroup]:
    """Group requested beside actual values; for an audited run also plan beside audit."""
    resolved = dict(run.resolved)
    requested = _requested(run) | resolved.pop("plan", {})
    actual = flatten(resolved | resolved.pop("audit", {}))
    members: dict[str, list[str]] = {title: [] for title in FACT_GROUPS}
    for name in actual.keys() - _TOLD_ELSEWHERE:
        members[_group_of(name)].append(name)
    return [
        FactGroup(
            title=title,
            facts=[_fact(name, requested, actual[name]) for name in _in_order(title, names)],
        )
        for title, names in members.items()
        if names
    ]


def _group_of(name: str) -> str:
    listed = (title for title, titles in FACT_GROUPS.items() if name in titles)
    return next(listed, _NESTED.get(name.partition(".")[0], "Other"))


def _in_order(group: str, names: Sequence[str]) -> list[str]:
    """Sort as the group lists its values, then by name."""
    order = list(FACT_GROUPS[group])
    return sorted(names, key=lambda name: (order.index(name) if name in order else 0, name))


def _requested(run: Run) -> dict[str, Any]:
    """Return what the recipe requests, under the names that a run reports."""
    steps = run.recipe.optimisation
    batch = steps.per_device_train_batch_size * steps.gradient_accumulation_steps
    mode = asdict(PRECISIONS[run.recipe.precision])
    return mode | {"seed": steps.seed, "effective_batch_size": batch}


def _fact(name: str, requested: dict[str, Any], actual: object) -> Fact:
    requested_value = requested.get(name)
    return Fact(
        name=fact_title(name),
        requested=formatting.setting(requested_value) if name in requested else "",
        actual=formatting.size(actual)
        if isinstance(actual, int) and name.endswith("_bytes")
        else formatting.setting(actual),
        differs=name in requested and requested_value != actual,
    )


def fact_title(name: str) -> str:
    """Return the title of a value that a run reports."""
    parent, _, own = name.partition(".")
    if parent in _NESTED:
        return own
    return FACT_GROUPS[_group_of(name)].get(name) or formatting.metric_title(name)


MAX_EVENTS = 200
"""How many events the page shows; the REST API returns the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventLine:
    """One event, or several consecutive ones of the same kind."""

    at: datetime
    kind: str
    text: str
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRow:
    """One attempt as the page shows it."""

    attempt: Attempt
    seconds: float | None
    end_reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunHistory:
    events: list[EventLine]
    last_id: int
    """Id of the newest event shown; the event stream continues after it."""
    is_truncated: bool
    attempts: list[AttemptRow]


def load_history(db: Session, run: Run) -> RunHistory:
    run_id = run.id or 0
    events = runs.list_newest_events(db, run_id, limit=MAX_EVENTS)
    return RunHistory(
        events=_event_lines(events),
        last_id=(events[0].id or 0) if events else 0,
        is_truncated=len(events) == MAX_EVENTS,
        attempts=[_attempt_row(run, attempt) for attempt in attempts.list_attempts(db, run_id)],
    )


def _event_lines(events: Sequence[RunEvent]) -> list[EventLine]:
    """Describe events, newest first. Consecutive checkpoints share a line: that of the newest."""
    lines: list[EventLine] = []
    for row in events:
        previous = lines[-1] if lines else None
        if previous and previous.kind == row.kind == "checkpointed":
            lines[-1] = replace(previous, count=previous.count + 1)
        else:
            lines.append(EventLine(at=row.at, kind=row.kind, text=run_events.to_event(row).words))
    return lines


def _attempt_row(run: Run, attempt: Attempt) -> AttemptRow:
    end = attempt.ended_at
    seconds = run_progress.elapsed_seconds(attempt.began_at, end) if end else None
    ended = _end_reason(attempt) if end else _unfinished_state(run, attempt)
    return AttemptRow(attempt=attempt, seconds=seconds, end_reason=ended)


def _unfinished_state(run: Run, attempt: Attempt) -> str:
    if attempt.number != run.attempt:
        return "end not recorded"
    # Its final event arrives a moment before its process exits.
    return "in progress" if run.status.is_live else run.status.value


def _end_reason(attempt: Attempt) -> str:
    code = attempt.exit_code
    if attempt.outcome != LOST:
        return attempt.outcome
    if code is not None and -code in list(signal.Signals):
        return f"lost: killed by {signal.Signals(-code).name}"
    return "lost: no exit code" if code is None else f"lost: exit code {code}"


FIRST_EVENTS = 100
"""Events to read from the start of a run: they include its startup phases and first answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFigures:
    """Memory and time of a run, as text; empty if unknown."""

    memory_estimate: str
    length_note: str
    duration_estimate: str
    measurement_note: str


@router.get("/runs/{run_id}/details")
def show_details(request: Request, run_id: int, db: DB, config: Config) -> Response:
    run = runs.get(db, run_id)
    events = RunDir(config.runs / str(run_id)).events
    return tab_page(
        request,
        db,
        run,
        "details",
        memory=_memory_figures(run),
        beginning=run_progress.startup_phases(run, events.read_head(FIRST_EVENTS)),
        resolved=group_facts(run),
        recipe=yaml.dump(run.recipe),
        past=load_history(db, run),
    )


@router.get("/runs/{run_id}/parts/history")
def history_block(request: Request, run_id: int, db: DB) -> Response:
    run = runs.get(db, run_id)
    return block(request, "runs/details.html", "history", run=run, past=load_history(db, run))


def _memory_figures(run: Run) -> MemoryFigures:
    """Compare what was estimated at submission with what was measured."""
    estimate, measured = run.estimate.get("memory"), run.metrics.get("peak_memory_bytes")
    timing = run.estimate.get("timing", {})
    seconds = run_progress.measure(run).total_seconds if run.status is RunStatus.SUCCEEDED else None
    return MemoryFigures(
        memory_estimate=formatting.estimated_size(estimate["total"], memory.measured_peak(run))
        if estimate
        else "",
        length_note=_length_note(estimate["length"], run) if estimate else "",
        duration_estimate=formatting.estimated_duration(timing.get("seconds"), seconds),
        measurement_note=formatting.memory_measure_sentence(run.resolved) if measured else "",
    )


def _length_note(expected: int, run: Run) -> str:
    """Return a note if the longest example was not as long as estimated."""
    longest = run.resolved.get("longest_example", expected)
    if longest == expected:
        return ""
    return (
        f"The estimate assumed examples of {expected:,} tokens; the longest one here has "
        f"{longest:,}."
    )
