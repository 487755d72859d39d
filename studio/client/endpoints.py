"""Every API call, declared once as a request with its response schema. Nothing is sent here."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Generic, TypeVar, cast
from uuid import uuid4

from pydantic import TypeAdapter

from studio.client import schemas

T = TypeVar("T")
ProgressCallback = Callable[[int, int], object]
"""Called with the number of bytes sent, and the total."""

_PAGE_SIZE = 100


class ProgressFile:
    """A file that reports how far it has been read."""

    def __init__(self, file: BinaryIO, size: int, on_progress: ProgressCallback) -> None:
        self._file, self._size, self._heard = file, size, on_progress
        self.name = file.name

    def read(self, size: int = -1) -> bytes:
        part = self._file.read(size)
        self._heard(self._file.tell(), self._size)
        return part

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def fileno(self) -> int:
        return self._file.fileno()


@dataclass(frozen=True, slots=True, kw_only=True)
class FileUpload:
    path: Path
    on_progress: ProgressCallback

    @contextmanager
    def open(self) -> Iterator[dict[str, Any]]:
        with self.path.open("rb") as file:
            counted = ProgressFile(file, self.path.stat().st_size, self.on_progress)
            yield {"file": (self.path.name, counted)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiRequest(Generic[T]):
    """A request with its response schema."""

    method: str
    path: str
    shape: Any = None
    params: Mapping[str, Any] = field(default_factory=dict)
    body: Any = None
    form: Mapping[str, str] = field(default_factory=dict)
    file: FileUpload | None = None
    key: str = ""
    """The idempotency key, so that repeating the request has no further effect."""

    @property
    def is_retryable(self) -> bool:
        return bool(self.key) or self.method in {"GET", "PUT", "DELETE"}

    def read(self, content: bytes) -> T:
        if self.shape is str:
            text: Any = content.decode()
            return cast("T", text)
        adapter: TypeAdapter[T] = TypeAdapter(self.shape)
        return adapter.validate_json(content or b"null")


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedRequest(Generic[T]):
    """A request for a paginated list."""

    path: str
    shape: type[T]
    params: Mapping[str, Any] = field(default_factory=dict)

    def page(self, after: int | None) -> ApiRequest[schemas.Page[T]]:
        params = _drop_empty({"limit": _PAGE_SIZE, **self.params, "after": after})
        page_type: Any = schemas.Page
        return ApiRequest(method="GET", path=self.path, shape=page_type[self.shape], params=params)


def _drop_empty(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None and value != ""}


Recipe = Mapping[str, Any]


def submit_run(name: str, recipe: Recipe, *, notes: str = "") -> ApiRequest[schemas.Run]:
    """Create an experiment from a recipe, and queue its first run."""
    return _create_request("/runs", schemas.Run, {"name": name, "recipe": recipe, "notes": notes})


def run(run_id: int) -> ApiRequest[schemas.Run]:
    """Get a run."""
    return _get_request(f"/runs/{run_id}", schemas.Run)


def runs(
    query: str = "", *, sort: str = "-created", **filters: str | int
) -> PagedRequest[schemas.Run]:
    """List runs that match a query and filters such as `status="failed"`, `tag`, `precision`."""
    return PagedRequest(
        path="/runs", shape=schemas.Run, params=_drop_empty({"q": query, "sort": sort, **filters})
    )


def change_run(run_id: int, **changes: Any) -> ApiRequest[schemas.Run]:  # noqa: ANN401 -- any field of the API
    """Change name, notes, tags or priority; hold, archive or trash the run."""
    return ApiRequest(method="PATCH", path=f"/runs/{run_id}", shape=schemas.Run, body=changes)


def delete_run(run_id: int) -> ApiRequest[None]:
    """Delete a run permanently, with its metrics and files."""
    return ApiRequest(method="DELETE", path=f"/runs/{run_id}")


def cancel_run(run_id: int) -> ApiRequest[schemas.Run]:
    return _post_request(f"/runs/{run_id}/cancel", schemas.Run)


def keep_run(run_id: int) -> ApiRequest[schemas.Run]:
    """Stop a run, and keep the model trained so far as its result."""
    return _post_request(f"/runs/{run_id}/keep", schemas.Run)


def pause_run(run_id: int) -> ApiRequest[schemas.Run]:
    return _post_request(f"/runs/{run_id}/pause", schemas.Run)


def resume_run(run_id: int) -> ApiRequest[schemas.Run]:
    return _post_request(f"/runs/{run_id}/resume", schemas.Run)


def retry_run(run_id: int, *, from_start: bool = False) -> ApiRequest[schemas.Run]:
    """Retry a failed or cancelled run from its newest checkpoint, or restart it from step 0."""
    start_point = "start" if from_start else "checkpoint"
    return _post_request(f"/runs/{run_id}/retry", schemas.Run, {"from": start_point})


def move_run(run_id: int, place: int) -> ApiRequest[schemas.Run]:
    return _post_request(f"/runs/{run_id}/move", schemas.Run, {"place": place})


def rerun(run_id: int, overrides: Recipe | None = None) -> ApiRequest[schemas.Run]:
    """Queue the recipe of a run again, with some values overridden."""
    return _create_request(f"/runs/{run_id}/again", schemas.Run, {"overrides": overrides or {}})


def metrics(
    run_id: int,
    keys: Sequence[str] = (),
    *,
    x: str = "step",
    buckets: int = 1000,
    between: tuple[float | None, float | None] = (None, None),
) -> ApiRequest[schemas.Curves]:
    """Get the metrics of a run along an axis; by default all metrics by step."""
    params = {"keys": ",".join(keys), "x": x, "buckets": buckets}
    bounds = {"from": between[0], "to": between[1]}
    return _get_request(f"/runs/{run_id}/metrics", schemas.Curves, **params, **bounds)


def run_report(run_id: int) -> ApiRequest[str]:
    """Get the report of a run: one HTML file."""
    return _get_request(f"/runs/{run_id}/report", str)


def artifacts(run_id: int) -> ApiRequest[schemas.Page[schemas.File]]:
    return _get_request(f"/runs/{run_id}/artifacts", schemas.Page[schemas.File])


def trackers(run_id: int) -> ApiRequest[schemas.Page[schemas.Tracker]]:
    """List where a run is sent besides the studio, and how far."""
    return _get_request(f"/runs/{run_id}/trackers", schemas.Page[schemas.Tracker])


def track_run(
    run_id: int,
    tracker: str,
    *,
    project: str = "",
    name: str = "",
    entity: str = "",
    tags: Sequence[str] = (),
) -> ApiRequest[schemas.Tracker]:
    """Send a run to a tracker, from its first event on; it may have ended long ago."""
    names = {"tracker": tracker, "project": project, "name": name, "entity": entity}
    body = {**names, "tags": list(tags)}
    return _create_request(f"/runs/{run_id}/trackers", schemas.Tracker, body)


def retry_tracker(run_id: int, key: str) -> ApiRequest[schemas.Tracker]:
    """Try again at once to send a run to a tracker."""
    return _post_request(f"/runs/{run_id}/trackers/{key}/retry", schemas.Tracker)


def stop_tracker(run_id: int, key: str) -> ApiRequest[None]:
    """Stop sending a run to a tracker; what was sent stays there."""
    return ApiRequest(method="DELETE", path=f"/runs/{run_id}/trackers/{key}")


def experiments() -> PagedRequest[schemas.Experiment]:
    return PagedRequest(path="/experiments", shape=schemas.Experiment)


def experiment(experiment_id: int) -> ApiRequest[schemas.Experiment]:
    return _get_request(f"/experiments/{experiment_id}", schemas.Experiment)


def create_experiment(
    name: str, recipe: Recipe, *, notes: str = "", tags: Sequence[str] = ()
) -> ApiRequest[schemas.Experiment]:
    body = {"name": name, "recipe": recipe, "notes": notes, "tags": list(tags)}
    return _create_request("/experiments", schemas.Experiment, body)


def run_experiment(
    experiment_id: int,
    *,
    overrides: Recipe | None = None,
    sweep: Mapping[str, Sequence[Any]] | None = None,
    priority: int = 0,
) -> ApiRequest[schemas.Page[schemas.Run]]:
    """Queue one run, or one per combination of values: `{"precision": ["fp32", "bf16"]}`."""
    body = {"overrides": overrides or {}, "sweep": sweep or {}, "priority": priority}
    return _create_request(f"/experiments/{experiment_id}/runs", schemas.Page[schemas.Run], body)


def delete_experiment(experiment_id: int) -> ApiRequest[None]:
    return ApiRequest(method="DELETE", path=f"/experiments/{experiment_id}")


def datasets() -> PagedRequest[schemas.Dataset]:
    return PagedRequest(path="/datasets", shape=schemas.Dataset)


def dataset(dataset_id: int) -> ApiRequest[schemas.Dataset]:
    return _get_request(f"/datasets/{dataset_id}", schemas.Dataset)


def add_dataset(
    path: Path | str, *, name: str = "", progress: ProgressCallback = lambda _sent, _size: None
) -> ApiRequest[schemas.Dataset]:
    """Upload a file; `progress` is called with the sent and the total bytes."""
    return ApiRequest(
        method="POST",
        path="/datasets",
        shape=schemas.Dataset,
        form=_drop_empty({"name": name}),
        file=FileUpload(path=Path(path), on_progress=progress),
        key=str(uuid4()),
    )


def import_dataset(source: Mapping[str, Any], *, name: str = "") -> ApiRequest[schemas.Task]:
    """Import from a source such as `{"kind": "url", "url": …}` or `{"kind": "hub", "id": …}`."""
    return _create_request("/datasets", schemas.Task, {"source": source, "name": name})


def delete_dataset(dataset_id: int) -> ApiRequest[None]:
    return ApiRequest(method="DELETE", path=f"/datasets/{dataset_id}")


def task(chore_id: int) -> ApiRequest[schemas.Task]:
    return _get_request(f"/chores/{chore_id}", schemas.Task)


def models() -> PagedRequest[schemas.Model]:
    return PagedRequest(path="/models", shape=schemas.Model)


def model(name: str | int) -> ApiRequest[schemas.Model]:
    return _get_request(f"/models/{name}", schemas.Model)


def add_model(path: str, *, name: str | None = None) -> ApiRequest[schemas.Model]:
    """Add a folder on the studio's machine as a base model."""
    return _create_request(
        "/models", schemas.Model, {"source": {"kind": "folder", "path": path}, "name": name}
    )


def download_model(
    hub_id: str, *, revision: str = "", name: str | None = None
) -> ApiRequest[schemas.Task]:
    source = {"kind": "hub", "id": hub_id, "revision": revision}
    return _create_request("/models", schemas.Task, {"source": source, "name": name})


def sweeps() -> PagedRequest[schemas.Sweep]:
    return PagedRequest(path="/sweeps", shape=schemas.Sweep)


def sweep(sweep_id: int) -> ApiRequest[schemas.Sweep]:
    return _get_request(f"/sweeps/{sweep_id}", schemas.Sweep)


def create_sweep(experiment_id: int, space: Recipe, **options: Any) -> ApiRequest[schemas.Sweep]:  # noqa: ANN401 -- any field of the API
    """Start a sweep; options include `strategy`, `count`, `metric` and `parallel`."""
    return _create_request(
        "/sweeps", schemas.Sweep, {"experiment_id": experiment_id, "space": space, **options}
    )


def preview_sweep(
    experiment_id: int,
    space: Recipe,
    **options: Any,  # noqa: ANN401 -- any field of the API
) -> ApiRequest[schemas.SweepPreview]:
    """Preview a sweep: its number of runs, duration and conflicts."""
    body = {"experiment_id": experiment_id, "space": space, **options}
    return _post_request("/sweeps/prospect", schemas.SweepPreview, body)


def stop_sweep(sweep_id: int) -> ApiRequest[schemas.Sweep]:
    return _post_request(f"/sweeps/{sweep_id}/stop", schemas.Sweep)


def exports(run_id: int) -> ApiRequest[schemas.Page[schemas.Export]]:
    return _get_request(f"/runs/{run_id}/exports", schemas.Page[schemas.Export])


def export_run(run_id: int, dtype: str, *, kind: str | None = None) -> ApiRequest[schemas.Export]:
    """Queue an export; without a kind it is the whole model as it was trained."""
    return _create_request(
        f"/runs/{run_id}/exports", schemas.Export, {"dtype": dtype, "kind": kind}
    )


def delete_export(run_id: int, export_id: int) -> ApiRequest[None]:
    """Delete an export and its files."""
    return ApiRequest(method="DELETE", path=f"/runs/{run_id}/exports/{export_id}")


def push_export(
    run_id: int, export_id: int, repo: str, *, private: bool = True
) -> ApiRequest[schemas.HubPush]:
    """Upload a finished export to the hub, as `owner/name`; what has arrived is not sent again."""
    body = {"repo": repo, "private": private}
    return _post_request(f"/runs/{run_id}/exports/{export_id}/pushes", schemas.HubPush, body)


def pushes(run_id: int, export_id: int) -> ApiRequest[schemas.Page[schemas.HubPush]]:
    """List the uploads of an export, newest first."""
    path = f"/runs/{run_id}/exports/{export_id}/pushes"
    return _get_request(path, schemas.Page[schemas.HubPush])


def served_endpoints() -> ApiRequest[schemas.Page[schemas.Endpoint]]:
    return _get_request("/endpoints", schemas.Page[schemas.Endpoint])


def served_endpoint(endpoint_id: int) -> ApiRequest[schemas.Endpoint]:
    return _get_request(f"/endpoints/{endpoint_id}", schemas.Endpoint)


def serve(name: str, run_id: int, **options: Any) -> ApiRequest[schemas.Endpoint]:  # noqa: ANN401 -- any field of the API
    """Serve the model of a run; options include `step`, `export_id`, `engine`, `idle_minutes`."""
    return _create_request(
        "/endpoints", schemas.Endpoint, {"name": name, "run_id": run_id, **options}
    )


def start_endpoint(endpoint_id: int) -> ApiRequest[schemas.Endpoint]:
    return _post_request(f"/endpoints/{endpoint_id}/start", schemas.Endpoint)


def stop_endpoint(endpoint_id: int) -> ApiRequest[schemas.Endpoint]:
    return _post_request(f"/endpoints/{endpoint_id}/stop", schemas.Endpoint)


def delete_endpoint(endpoint_id: int) -> ApiRequest[None]:
    """Delete an endpoint and its log; the model stays."""
    return ApiRequest(method="DELETE", path=f"/endpoints/{endpoint_id}")


def endpoint_log(endpoint_id: int) -> ApiRequest[str]:
    """Get the last lines that the program of an endpoint wrote."""
    return _get_request(f"/endpoints/{endpoint_id}/log", str)


def compare(run_ids: Sequence[int], *, base: int | None = None) -> ApiRequest[schemas.Comparison]:
    """Compare the settings of runs, and their metrics against those of the base run."""
    return _get_request("/compare", schemas.Comparison, runs=",".join(map(str, run_ids)), base=base)


def comparison_report(run_ids: Sequence[int], *, base: int | None = None) -> ApiRequest[str]:
    """Get the report of a comparison: one HTML file."""
    return _get_request("/compare/report", str, runs=",".join(map(str, run_ids)), base=base)


def import_recipe(text: str, *, method: str = "") -> ApiRequest[schemas.ImportedRecipe]:
    """Show the recipe that another tool's file describes. Nothing is stored."""
    body = {"text": text, "method": method}
    return _post_request("/recipes/import", schemas.ImportedRecipe, body)


def queue() -> ApiRequest[schemas.Queue]:
    return _get_request("/queue", schemas.Queue)


def _get_request(path: str, shape: Any, **params: Any) -> ApiRequest[Any]:  # noqa: ANN401 -- the shape defines the response
    return ApiRequest(method="GET", path=path, shape=shape, params=_drop_empty(params))


def _post_request(path: str, shape: Any, body: Any = None) -> ApiRequest[Any]:  # noqa: ANN401 -- the shape defines the response
    return ApiRequest(method="POST", path=path, shape=shape, body=body)


def _create_request(path: str, shape: Any, body: Any) -> ApiRequest[Any]:  # noqa: ANN401 -- the shape defines the response
    return ApiRequest(method="POST", path=path, shape=shape, body=body, key=str(uuid4()))
