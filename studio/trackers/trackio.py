"""Trackio: a database in the studio's folder.

Each row has an id of its own that its database takes once, so rows can be written again. It cannot
forget a step: if a later attempt repeats some, the run is deleted and written again.
"""

import os
import shlex
from datetime import UTC, datetime
from typing import Any

from studio.protocols.events import Sampled
from studio.trackers import run_texts
from studio.trackers.contract import Batch, RunEnd, Target, TrackerState

_LEVELS = {"succeeded": "info", "failed": "error", "cancelled": "warn"}


def open_run(target: Target, state: TrackerState) -> "TrackioWriter":
    """Open the database of the run's project."""
    # It decides when it is imported where its databases are.
    os.environ["TRACKIO_DIR"] = str(target.folder)
    project = run_texts.file_name(target.project)
    state.place = str(target.folder)
    where = f"TRACKIO_DIR={shlex.quote(str(target.folder))}"
    state.command = f"{where} trackio show --project {shlex.quote(project)}"
    return TrackioWriter(target, project, state)


class TrackioWriter:
    def __init__(self, target: Target, project: str, state: TrackerState) -> None:
        from trackio.sqlite_storage import SQLiteStorage  # noqa: PLC0415 -- optional dependency

        self._storage, self._target, self._project = SQLiteStorage, target, project
        self._own, self._step = state.own, max(state.step, 0)
        self._own.setdefault("config", self._first_config())

    def write(self, batch: Batch) -> None:
        if batch.resolved is not None:
            self._own["config"] |= run_texts.resolved_config(batch.resolved)
        rows: list[tuple[int, datetime, str, dict[str, Any]]] = [
            (point.step, point.at, f"{point.at.isoformat()}", dict(point.values))
            for point in batch.points
        ]
        for step, samples in run_texts.answers_by_step(batch.samples).items():
            table = {"answers": self._table(samples, step)}
            rows.append((step, samples[-1].at, f"answers-{samples[-1].at.isoformat()}", table))
        self._step = max(self._step, batch.last_step)
        if batch.final is not None:
            final = {f"final/{key}": value for key, value in batch.final.items()}
            rows.append((self._step, datetime.now(UTC), "final", final))
        self._log(rows)
        for alarm in batch.alarms:
            text = run_texts.alarm_text(alarm)
            self._alert(alarm.code, text, "warn", alarm.step, alarm.at)

    def rewind(self, _step: int) -> bool:
        self._storage.delete_run(self._project, self._target.name, run_id=self._target.facts.key)
        self._own.clear()
        return False

    def close(self, end: RunEnd | None) -> None:
        if end is not None:
            self._alert(f"Run {end.status}", end.error, _LEVELS[end.status], self._step, end.at)

    def _log(self, rows: list[tuple[int, datetime, str, dict[str, Any]]]) -> None:
        rows.sort(key=lambda row: row[0])
        self._storage.bulk_log(
            project=self._project,
            run=self._target.name,
            run_id=self._target.facts.key,
            metrics_list=[values for *_, values in rows],
            steps=[step for step, *_ in rows],
            timestamps=[at.isoformat() for _, at, *_ in rows],
            log_ids=[f"{self._target.facts.key}-{step}-{name}" for step, _, name, _ in rows],
            config=self._own["config"],
        )

    def _alert(self, title: str, text: str, level: str, step: int, at: datetime) -> None:
        self._storage.bulk_alert(
            project=self._project,
            run=self._target.name,
            run_id=self._target.facts.key,
            titles=[title],
            texts=[text],
            levels=[level],
            steps=[step],
            timestamps=[at.isoformat()],
            alert_ids=[f"{self._target.facts.key}-{at.isoformat()}-{title}"],
        )

    def _table(self, samples: list[Sampled], step: int) -> dict[str, Any]:
        from trackio import Table  # noqa: PLC0415 -- optional dependency

        columns, rows = run_texts.ANSWER_COLUMNS, map(run_texts.answer_row, samples)
        table = Table(columns=list(columns), data=[list(row) for row in rows])
        made: dict[str, Any] = table._to_dict(self._project, self._target.name, step)  # noqa: SLF001 -- as its own runs do
        return made

    def _first_config(self) -> dict[str, Any]:
        target = self._target
        own = {"tags": list(target.tags), "notes": target.facts.notes}
        created = {"_Created": target.facts.created_at.isoformat()}
        return run_texts.config(target.facts) | target.facets | own | created
