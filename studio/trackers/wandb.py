"""Weights & Biases: its server, or without a key files that `wandb sync` uploads later.

Its steps must rise. Without a server, each process writes a folder of its own; that of a process
that was killed is deleted and written again. A server says which step comes next, so what it has is
left out. No step can be taken back: if a later attempt repeats some, the run is sent again as a new
one.
"""

import os
import re
import shlex
import shutil
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Any

import wandb

from studio.trackers import run_texts
from studio.trackers.contract import Batch, RunEnd, Target, TrackerState

INIT_SECONDS = 40
"""How long its server may take to begin a run: less than a tracker may take."""
_UNSAFE = re.compile(r"[/\\#?%:]")
_MAX_PROJECT = 128
_START = ("offset", "step", "has_started", "has_resumed")
"""What is needed to start again where a process has started."""


def open_run(target: Target, state: TrackerState) -> "WandbWriter":
    """Begin or resume the run; where a killed process has lost something, go back."""
    _disable_telemetry()
    project = _UNSAFE.sub("-", target.project)[:_MAX_PROJECT]
    folder = target.folder / run_texts.file_name(project) / f"run-{target.facts.key}"
    folder.mkdir(parents=True, exist_ok=True)
    is_online = bool(target.secret)
    if is_online:
        os.environ["WANDB_API_KEY"] = target.secret
    else:
        _delete_unfinished(folder / "wandb", state)
    run = wandb.init(
        project=project,
        entity=target.options.entity or None,
        dir=folder,
        id=_run_id(target, state),
        name=target.name,
        notes="\n\n".join(filter(None, (target.facts.notes, target.facts.url))),
        tags=[tag[:64] for tag in target.tags],
        config=run_texts.config(target.facts),
        mode="online" if is_online else "offline",
        resume="allow",
        reinit="create_new",
        settings=_settings(target),
    )
    state.place = run.url if is_online else str(folder / "wandb")
    state.command = (
        "" if is_online else f"wandb sync {shlex.quote(str(folder / 'wandb'))}/offline-run-*"
    )
    if is_online and run.starting_step <= state.step:
        # The server has not got all. What it has is left out.
        state.rewind_to_start()
    return WandbWriter(run, folder, state)


class WandbWriter:
    def __init__(self, run: Any, folder: Path, state: TrackerState) -> None:  # noqa: ANN401 -- untyped when it is not installed
        self._run, self._folder, self._own = run, folder, state.own

    def write(self, batch: Batch) -> None:
        if batch.resolved is not None:
            resolved = run_texts.resolved_config(batch.resolved)
            self._run.config.update(resolved, allow_val_change=True)
        for step, row in sorted(_rows(batch).items()):
            if step >= self._run.starting_step:
                self._run.log(row, step=step, commit=True)
        for alarm in batch.alarms:
            self._run.alert(alarm.code, run_texts.alarm_text(alarm), level="WARN")
            self._run.tags = tuple(dict.fromkeys((*self._run.tags, f"alarm:{alarm.code}"[:64])))
        if batch.final is not None:
            final = {f"final/{key}": value for key, value in batch.final.items()}
            self._run.summary.update(final)

    def rewind(self, _step: int) -> bool:
        self._run.finish(exit_code=1)
        shutil.rmtree(self._folder / "wandb", ignore_errors=True)
        self._own.clear()
        return False

    def close(self, end: RunEnd | None) -> None:
        if end is None:
            self._run.mark_preempting()  # It continues later.
        else:
            self._run.summary.update({"status": end.status, "error": end.error})
        session = Path(self._run.settings.sync_dir).name
        self._run.finish(exit_code=0 if end is not None and end.status == "succeeded" else 1)
        self._own["finished"] = [*self._own.get("finished", []), session]


def _run_id(target: Target, state: TrackerState) -> str:
    key = target.facts.key
    return key if state.generation == 1 else f"{key}-{state.generation}"


def _delete_unfinished(folder: Path, state: TrackerState) -> None:
    """Delete what a killed process has written, and start again where it has started."""
    if state.is_open and "start" in state.own:
        for name, value in state.own["start"].items():
            setattr(state, name, value)
    state.own["start"] = {name: getattr(state, name) for name in _START}
    finished = state.own.get("finished", [])
    for path in folder.glob("offline-run-*"):
        if path.name not in finished:
            shutil.rmtree(path)


def _settings(target: Target) -> Any:  # noqa: ANN401 -- untyped when it is not installed
    address = {"base_url": target.url} if target.url else {}
    return wandb.Settings(
        **address,
        console="off",
        disable_code=True,
        disable_git=True,
        init_timeout=INIT_SECONDS,
        save_code=False,
        silent=True,
        x_disable_machine_info=True,
        x_disable_meta=True,
        x_disable_stats=True,
        x_save_requirements=False,
        x_start_time=target.facts.created_at.timestamp(),
    )


def _disable_telemetry() -> None:
    with suppress(ImportError, AttributeError):  # Not all versions have it.
        from wandb.analytics.opentelemetry import opentelemetry_proxy  # noqa: PLC0415 -- optional dependency

        opentelemetry_proxy.disable()


def _rows(batch: Batch) -> dict[int, dict[str, Any]]:
    """Return what to log at each step: its metrics, its answers as a table, and its time."""
    rows: dict[int, dict[str, Any]] = defaultdict(dict)
    for point in batch.points:
        rows[point.step] |= point.values
        rows[point.step] |= {"epoch": point.epoch, "tokens": point.tokens}
        rows[point.step].setdefault("_timestamp", point.at.timestamp())
    for step, answers in run_texts.answers_by_step(batch.samples).items():
        data = [list(run_texts.answer_row(sample)) for sample in answers]
        table = wandb.Table(columns=list(run_texts.ANSWER_COLUMNS), data=data)
        rows[step]["answers"] = table
        rows[step].setdefault("_timestamp", answers[-1].at.timestamp())
    return rows
