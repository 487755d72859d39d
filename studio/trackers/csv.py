"""CSV files that grow while a run trains: its metrics, alarms and answers, and what it is.

Rows are appended. A process that was killed may have appended rows that its state does not know of:
they are cut off, and written again.
"""

import csv
import io
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from studio import files
from studio.trackers.contract import Batch, RunEnd, Target, TrackerState
from studio.trackers.run_texts import file_name

_HEADS: dict[str, tuple[str, ...]] = {
    "metrics.csv": ("step", "time", "epoch", "tokens", "seconds", "metric", "value"),
    "alarms.csv": ("step", "time", "code", "message", "hint", "module"),
    "answers.csv": ("step", "time", "stage", "position", "prompt", "reference", "answer"),
}
"""The files and their columns; the first one is the step."""

_Row = Sequence[object]

_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "\N{FULLWIDTH EQUALS SIGN}")
"""How texts begin that a spreadsheet would run as a formula."""


def open_run(target: Target, state: TrackerState) -> "CsvWriter":
    """Open the files of a run, and cut off what the state does not know of."""
    folder = target.folder / file_name(target.project) / f"run-{target.facts.key}"
    if not folder.exists():
        state.rewind_to_start()  # It is new, or somebody has deleted it.
    folder.mkdir(parents=True, exist_ok=True)
    known: dict[str, int] = state.own.setdefault("bytes", {})
    for name, head in _HEADS.items():
        path = folder / name
        if known.get(name) is None or not path.exists():
            path.write_text(_to_text([head]), encoding="utf-8", newline="")
            known[name] = path.stat().st_size
        with path.open("r+b") as file:
            file.truncate(min(known[name], path.stat().st_size))
    state.place = str(folder)
    return CsvWriter(target, folder, known)


class CsvWriter:
    def __init__(self, target: Target, folder: Path, known: dict[str, int]) -> None:
        self._target, self._folder, self._known = target, folder, known
        self._facts: dict[str, Any] = {}
        self._write_facts()

    def write(self, batch: Batch) -> None:
        if batch.resolved is not None:
            self._write_facts(resolved=dict(batch.resolved))
        if batch.final is not None:
            self._write_facts(final={key: repr(value) for key, value in batch.final.items()})
        self._append("metrics.csv", _metric_rows(batch))
        self._append("alarms.csv", _alarm_rows(batch))
        self._append("answers.csv", _answer_rows(batch))

    def rewind(self, step: int) -> bool:
        for name in _HEADS:
            path = self._folder / name
            with path.open(encoding="utf-8", newline="") as file:
                head, *rows = csv.reader(file)
            kept = [row for row in rows if int(row[0]) <= step]
            files.replace_text(path, _to_text([head, *kept]))
            self._known[name] = path.stat().st_size
        return True

    def close(self, end: RunEnd | None) -> None:
        if end is not None:
            self._write_facts(end=end.model_dump(mode="json"))

    def _append(self, name: str, rows: Iterable[_Row]) -> None:
        with (self._folder / name).open("a", encoding="utf-8", newline="") as file:
            file.write(_to_text(rows))
        self._known[name] = (self._folder / name).stat().st_size

    def _write_facts(self, **more: object) -> None:
        path = self._folder / "run.json"
        old = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        own = self._target.facts.model_dump(mode="json", exclude={"end"})
        files.replace_text(path, json.dumps(old | own | more, indent=2, ensure_ascii=False))


def _metric_rows(batch: Batch) -> Iterable[_Row]:
    for point in batch.points:
        position = (point.step, point.at.isoformat(), point.epoch, point.tokens, point.seconds)
        for key, value in point.values.items():
            yield *position, key, repr(value)


def _alarm_rows(batch: Batch) -> Iterable[_Row]:
    for alarm in batch.alarms:
        when = (alarm.step, alarm.at.isoformat())
        yield *when, *map(_text_cell, (alarm.code, alarm.message, alarm.hint, alarm.module))


def _answer_rows(batch: Batch) -> Iterable[_Row]:
    for sample in batch.samples:
        when = (sample.step, sample.at.isoformat())
        texts = (sample.prompt, sample.reference, sample.answer)
        yield *when, sample.stage, sample.position, *map(_text_cell, texts)


def _text_cell(text: str) -> str:
    return f"'{text}" if text.startswith(_FORMULA_STARTS) else text


def _to_text(rows: Iterable[_Row]) -> str:
    buffer = io.StringIO(newline="")
    csv.writer(buffer).writerows(rows)
    return buffer.getvalue()
