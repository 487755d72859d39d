"""MLflow: a server, or else a database in the studio's folder.

MLflow can be asked what it has, so metrics that a killed process has sent already are left out. It
cannot forget a step: if a later attempt repeats some, the run is sent again as a new one, and the
old one is moved to MLflow's trash.
"""

import json
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import TypeVar

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunStatus, RunTag

from studio.trackers import run_texts
from studio.trackers.contract import Batch, EndStatus, Point, RunEnd, Target, TrackerState

MAX_METRICS, MAX_PARAMS = 1000, 100
"""How many MLflow takes at once."""
_MAX_PARAM, _MAX_TAG = 5000, 5000
_MAX_LISTED = 20
"""How many values that are not finite are listed."""

_STATUSES: dict[EndStatus, str] = {
    "succeeded": "FINISHED",
    "failed": "FAILED",
    "cancelled": "KILLED",
}
_KEY_TAG = "studio.key"
_UNSAFE = re.compile(r"[^\w./: -]", re.ASCII)
T = TypeVar("T")


def open_run(target: Target, state: TrackerState) -> "MlflowWriter":
    """Continue the run in MLflow, or create it."""
    _sign_in(target.secret)
    address = target.url or f"sqlite:///{target.folder / 'mlflow.db'}"
    client = MlflowClient(tracking_uri=address)
    experiment = _find_or_create_experiment(client, target)
    key = f"{target.facts.key}-{state.generation}"
    run_id = state.own.get("run") or _find_run(client, experiment, key)
    was_killed = state.is_open or ("run" not in state.own and bool(run_id))
    state.own["run"] = run_id = run_id or _create_run(client, experiment, target, key)
    if target.url:
        state.place = f"{target.url.rstrip('/')}/#/experiments/{experiment}/runs/{run_id}"
    else:
        state.place = str(target.folder)
        state.command = f"mlflow ui --backend-store-uri {shlex.quote(address)}"
    writer = MlflowWriter(client, run_id, target, state)
    if was_killed:
        writer.look_up()
    return writer


class MlflowWriter:
    def __init__(
        self, client: MlflowClient, run_id: str, target: Target, state: TrackerState
    ) -> None:
        self._client, self._run_id, self._target = client, run_id, target
        self._own, self._step = state.own, max(state.step, 0)
        self._known: set[tuple[str, int]] = set()
        """What a process has sent that was killed before it could store that."""
        run = client.get_run(run_id)
        if run.info.status != RunStatus.to_string(RunStatus.RUNNING):
            client.update_run(run_id, status="RUNNING")
        if state.step < 0:
            self._log_params(run_texts.config(target.facts))

    def look_up(self) -> None:
        """Ask MLflow which metrics it has."""
        for key in self._client.get_run(self._run_id).data.metrics:
            history = self._client.get_metric_history(self._run_id, key)
            self._known |= {(key, metric.step) for metric in history}

    def write(self, batch: Batch) -> None:
        if batch.resolved is not None:
            self._set_tags(run_texts.resolved_config(batch.resolved))
        metrics = [metric for point in batch.points for metric in _metrics(point)]
        self._log_metrics(metrics)
        self._note_non_finite(batch.points)
        self._step = max(self._step, batch.last_step)
        if batch.alarms:
            words = {
                f"alarm.{alarm.code}": f"step {alarm.step}: {run_texts.alarm_text(alarm)}"
                for alarm in batch.alarms
            }
            self._set_tags(words)
        if batch.samples:
            self._log_answers()
        if batch.final is not None:
            now = int(datetime.now().astimezone().timestamp() * 1000)
            self._log_metrics(
                Metric(_key(f"final/{key}"), value, now, self._step)
                for key, value in batch.final.items()
            )

    def rewind(self, _step: int) -> bool:
        self._client.delete_run(self._run_id)
        self._own.clear()
        return False

    def close(self, end: RunEnd | None) -> None:
        if end is None:
            return
        if end.error:
            self._set_tags({"studio.error": end.error})
        self._client.set_terminated(
            self._run_id, _STATUSES[end.status], end_time=int(end.at.timestamp() * 1000)
        )

    def _log_metrics(self, metrics: Iterable[Metric]) -> None:
        new = [one for one in metrics if (one.key, one.step) not in self._known]
        for part in _parts(new, MAX_METRICS):
            self._client.log_batch(self._run_id, metrics=part, synchronous=True)

    def _log_params(self, values: dict[str, object]) -> None:
        params = [
            Param(_key(name), run_texts.as_text(value)[:_MAX_PARAM])
            for name, value in values.items()
        ]
        for part in _parts(params, MAX_PARAMS):
            self._client.log_batch(self._run_id, params=part, synchronous=True)

    def _set_tags(self, values: Mapping[str, object]) -> None:
        tags = [
            RunTag(_key(name), run_texts.as_text(value)[:_MAX_TAG])
            for name, value in values.items()
        ]
        for part in _parts(tags, MAX_PARAMS):
            self._client.log_batch(self._run_id, tags=part, synchronous=True)

    def _note_non_finite(self, points: Sequence[Point]) -> None:
        """Say which values are not finite: MLflow's databases store infinity as a large number."""
        if found := run_texts.non_finite(points):
            listed = [*self._own.get("non_finite", []), *found][:_MAX_LISTED]
            self._own["non_finite"] = listed
            self._set_tags({"studio.non_finite": "; ".join(listed)})

    def _log_answers(self) -> None:
        """Write all answers so far as a table, which replaces the one before."""
        answers = run_texts.all_answers(self._target.log, self._step)
        table = {
            "columns": list(run_texts.ANSWER_COLUMNS),
            "data": [list(run_texts.answer_row(sample)) for sample in answers],
        }
        self._client.log_text(self._run_id, json.dumps(table), "answers.json")
        listed = json.dumps([{"path": "answers.json", "type": "table"}])
        self._set_tags({"mlflow.loggedArtifacts": listed})


def _sign_in(secret: str) -> None:
    """Let the client send a token, or a name and a password."""
    name, colon, password = secret.partition(":")
    if colon:
        os.environ["MLFLOW_TRACKING_USERNAME"] = name
        os.environ["MLFLOW_TRACKING_PASSWORD"] = password
    elif secret:
        os.environ["MLFLOW_TRACKING_TOKEN"] = secret


def _find_or_create_experiment(client: MlflowClient, target: Target) -> str:
    experiment = client.get_experiment_by_name(target.project)
    if experiment is None:
        files = None if target.url else (target.folder / "artifacts").as_uri()
        created: str = client.create_experiment(target.project, artifact_location=files)
        return created
    if experiment.lifecycle_stage == "deleted":
        client.restore_experiment(experiment.experiment_id)
    found: str = experiment.experiment_id
    return found


def _find_run(client: MlflowClient, experiment: str, key: str) -> str:
    """Return the run that was created before it could be stored which one it is; or nothing."""
    found = client.search_runs([experiment], f"tags.`{_KEY_TAG}` = '{key}'", max_results=1)
    return str(found[0].info.run_id) if found else ""


def _create_run(client: MlflowClient, experiment: str, target: Target, key: str) -> str:
    facts = target.facts
    note = "\n\n".join(filter(None, (facts.notes, facts.url)))
    tags = {
        _KEY_TAG: key,
        "studio.run": str(facts.run),
        "studio.url": facts.url,
        "studio.tags": ", ".join(target.tags),
        "mlflow.note.content": note,
        **target.facets,
    }
    given = {name: value[:_MAX_TAG] for name, value in tags.items() if value}
    began = int(facts.created_at.timestamp() * 1000)
    run = client.create_run(experiment, start_time=began, tags=given, run_name=target.name)
    return str(run.info.run_id)


def _metrics(point: Point) -> Iterator[Metric]:
    at = int(point.at.timestamp() * 1000)
    for key, value in point.values.items():
        yield Metric(_key(key), value, at, point.step)


def _key(name: str) -> str:
    return _UNSAFE.sub("_", name)


def _parts(items: Sequence[T], size: int) -> Iterator[list[T]]:
    rest = iter(items)
    while part := list(islice(rest, size)):
        yield part
