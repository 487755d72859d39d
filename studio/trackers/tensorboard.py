"""TensorBoard: event files with metrics at their real times, and texts.

Each process writes a file of its own. Its first event makes readers discard what earlier files say
of the steps that follow the stored state, which is written again.
"""

import shlex
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams import metadata, plugin_data_pb2
from tensorboard.plugins.hparams.api_pb2 import STATUS_FAILURE, STATUS_SUCCESS
from tensorboard.plugins.hparams.summary_v2 import hparams_pb
from tensorboard.plugins.text.summary_v2 import text_pb
from tensorboard.summary.writer.record_writer import RecordWriter

from studio.trackers import run_texts
from studio.trackers.contract import Batch, RunEnd, Target, TrackerState

_VERSION = "brain.Event:2"
"""The version of the format: from here on, readers heed the start of a session."""
_PREFIX = "events.out.tfevents."


def open_run(target: Target, state: TrackerState) -> "TensorBoardWriter":
    """Start a new event file in the folder of the run."""
    project = target.folder / run_texts.file_name(target.project)
    folder = project / f"run-{target.facts.key}"
    if not folder.exists():
        state.rewind_to_start()  # It is new, or somebody has deleted it.
    folder.mkdir(parents=True, exist_ok=True)
    state.place = str(folder)
    state.command = f"tensorboard --logdir {shlex.quote(str(target.folder))}"
    return TensorBoardWriter(target, folder, state.step)


class TensorBoardWriter:
    def __init__(self, target: Target, folder: Path, step: int) -> None:
        self._target, self._folder, self._step = target, folder, step
        self._begin_file()

    def write(self, batch: Batch) -> None:
        if batch.resolved is not None:
            self._add_texts("resolved", run_texts.resolved_config(batch.resolved))
        for point in batch.points:
            values = [
                Summary.Value(tag=key, simple_value=value) for key, value in point.values.items()
            ]
            self._add(Summary(value=values), point.step, point.at)
            self._step = max(self._step, point.step)
        for alarm in batch.alarms:
            text = f"**{alarm.code}**: {run_texts.alarm_text(alarm)}"
            self._add(text_pb("alarms", text), alarm.step, alarm.at)
        for sample in batch.samples:
            self._step = max(self._step, sample.step)
            parts = zip(run_texts.ANSWER_COLUMNS, run_texts.answer_row(sample), strict=True)
            text = "\n\n".join(f"**{name}**: {value}" for name, value in parts)
            self._add(text_pb(f"answers/{sample.position + 1}", text), sample.step, sample.at)
        if batch.final is not None:
            self._add_texts("final", dict(batch.final))
        self._records.flush()

    def rewind(self, step: int) -> bool:
        self._records.close()
        self._step = step
        self._begin_file()
        return True

    def close(self, end: RunEnd | None) -> None:
        if end is not None:
            text = f"{end.status} {end.error}".strip()
            self._add(text_pb("status", text), max(self._step, 0), end.at)
            status = STATUS_SUCCESS if end.status == "succeeded" else STATUS_FAILURE
            self._add(_session_end(status, end.at), max(self._step, 0), end.at)
        self._records.close()

    def _begin_file(self) -> None:
        """Begin a file that is read after all others, and takes back what follows the step."""
        numbers = [
            int(path.name.removeprefix(_PREFIX).split(".")[0])
            for path in self._folder.glob(f"{_PREFIX}*")
        ]
        number = max(int(time.time()), max(numbers, default=0) + 1)
        path = self._folder / f"{_PREFIX}{number:010d}.studio"
        self._records = RecordWriter(path.open("wb"))
        self._write(Event(wall_time=time.time(), file_version=_VERSION))
        if numbers:
            start = SessionLog(status=SessionLog.START)
            self._write(Event(wall_time=time.time(), step=self._step + 1, session_log=start))
        if self._step < 0:
            self._write_config()
        self._records.flush()

    def _write_config(self) -> None:
        facts = self._target.facts
        config = {key: run_texts.as_text(value) for key, value in run_texts.config(facts).items()}
        began = facts.created_at.timestamp()
        own = config | self._target.facets
        self._add(hparams_pb(own, facts.key, began), 0, facts.created_at)
        self._add_texts("run", own | {"tags": ", ".join(self._target.tags)})

    def _add_texts(self, tag: str, texts: Mapping[str, object]) -> None:
        rows = "\n".join(f"| {name} | {run_texts.as_text(text)} |" for name, text in texts.items())
        table = f"| setting | value |\n|---|---|\n{rows}"
        self._add(text_pb(tag, table), 0, self._target.facts.created_at)

    def _add(self, summary: Summary, step: int, at: datetime) -> None:
        self._write(Event(wall_time=at.timestamp(), step=step, summary=summary))

    def _write(self, event: Event) -> None:
        self._records.write(event.SerializeToString())


def _session_end(status: int, at: datetime) -> Summary:
    info = plugin_data_pb2.SessionEndInfo(status=status, end_time_secs=at.timestamp())
    data = plugin_data_pb2.HParamsPluginData(session_end_info=info)
    value = Summary.Value(
        tag=metadata.SESSION_END_INFO_TAG,
        metadata=metadata.create_summary_metadata(data),
        tensor=metadata.NULL_TENSOR,
    )
    return Summary(value=[value])
