"""Every call, declared once: what is sent, and as what the answer is read. Nothing is sent here."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

from studio.client.request import ApiRequest, FileUpload, PagedRequest, ProgressCallback, drop_empty
from studio.client.schemas import (
    Comparison,
    Curves,
    Dataset,
    Experiment,
    File,
    Model,
    Page,
    Queue,
    Run,
    Sweep,
    SweepPreview,
    Task,
)

Recipe = Mapping[str, Any]


def submit_run(name: str, recipe: Recipe, *, notes: str = "") -> ApiRequest[Run]:
    """Make an experiment of a recipe, and queue its first run."""
    return _create_request("/runs", Run, {"name": name, "recipe": recipe, "notes": notes})


def run(run_id: int) -> ApiRequest[Run]:
    """Tell all of a run."""
    return _get_request(f"/runs/{run_id}", Run)


def runs(query: str = "", *, sort: str = "-created", **filters: str | int) -> PagedRequest[Run]:
    """List the runs that a query finds; filters as `status="failed"`, `tag` or `precision`."""
    return PagedRequest(
        path="/runs", shape=Run, params=drop_empty({"q": query, "sort": sort, **filters})
    )


def change_run(run_id: int, **changes: Any) -> ApiRequest[Run]:  # noqa: ANN401 -- as the API takes it
    """Change name, notes, tags, priority, or whether it is held, archived or in the trash."""
    return ApiRequest(method="PATCH", path=f"/runs/{run_id}", shape=Run, body=changes)


def delete_run(run_id: int) -> ApiRequest[None]:
    """Remove a run for good, with its numbers and files."""
    return ApiRequest(method="DELETE", path=f"/runs/{run_id}")


def cancel_run(run_id: int) -> ApiRequest[Run]:
    return _post_request(f"/runs/{run_id}/cancel", Run)


def keep_run(run_id: int) -> ApiRequest[Run]:
    """Stop a run, and keep what it has learnt as its result."""
    return _post_request(f"/runs/{run_id}/keep", Run)


def pause_run(run_id: int) -> ApiRequest[Run]:
    return _post_request(f"/runs/{run_id}/pause", Run)


def resume_run(run_id: int) -> ApiRequest[Run]:
    return _post_request(f"/runs/{run_id}/resume", Run)


def retry_run(run_id: int, *, from_start: bool = False) -> ApiRequest[Run]:
    """Have a run that has ended badly go on from its newest checkpoint, or begin anew."""
    place = "start" if from_start else "checkpoint"
    return _post_request(f"/runs/{run_id}/retry", Run, {"from": place})


def move_run(run_id: int, place: int) -> ApiRequest[Run]:
    return _post_request(f"/runs/{run_id}/move", Run, {"place": place})


def rerun(run_id: int, overrides: Recipe | None = None) -> ApiRequest[Run]:
    """Queue the recipe of a run once more, with some of its values changed."""
    return _create_request(f"/runs/{run_id}/again", Run, {"overrides": overrides or {}})


def metrics(
    run_id: int,
    keys: Sequence[str] = (),
    *,
    x: str = "step",
    buckets: int = 1000,
    between: tuple[float | None, float | None] = (None, None),
) -> ApiRequest[Curves]:
    """Tell the numbers of a run along an axis; by default all of them, along the steps."""
    asked = {"keys": ",".join(keys), "x": x, "buckets": buckets}
    ends = {"from": between[0], "to": between[1]}
    return _get_request(f"/runs/{run_id}/metrics", Curves, **asked, **ends)


def artifacts(run_id: int) -> ApiRequest[Page[File]]:
    return _get_request(f"/runs/{run_id}/artifacts", Page[File])


def experiments() -> PagedRequest[Experiment]:
    return PagedRequest(path="/experiments", shape=Experiment)


def experiment(experiment_id: int) -> ApiRequest[Experiment]:
    return _get_request(f"/experiments/{experiment_id}", Experiment)


def create_experiment(
    name: str, recipe: Recipe, *, notes: str = "", tags: Sequence[str] = ()
) -> ApiRequest[Experiment]:
    body = {"name": name, "recipe": recipe, "notes": notes, "tags": list(tags)}
    return _create_request("/experiments", Experiment, body)


def run_experiment(
    experiment_id: int,
    *,
    overrides: Recipe | None = None,
    sweep: Mapping[str, Sequence[Any]] | None = None,
    priority: int = 0,
) -> ApiRequest[Page[Run]]:
    """Queue one run, or one for every combination of values: `{"precision": ["fp32", "bf16"]}`."""
    body = {"overrides": overrides or {}, "sweep": sweep or {}, "priority": priority}
    return _create_request(f"/experiments/{experiment_id}/runs", Page[Run], body)


def delete_experiment(experiment_id: int) -> ApiRequest[None]:
    return ApiRequest(method="DELETE", path=f"/experiments/{experiment_id}")


def datasets() -> PagedRequest[Dataset]:
    return PagedRequest(path="/datasets", shape=Dataset)


def dataset(dataset_id: int) -> ApiRequest[Dataset]:
    return _get_request(f"/datasets/{dataset_id}", Dataset)


def add_dataset(
    path: Path | str, *, name: str = "", progress: ProgressCallback = lambda _sent, _size: None
) -> ApiRequest[Dataset]:
    """Upload a file; `progress` is told how many bytes of how many have gone."""
    return ApiRequest(
        method="POST",
        path="/datasets",
        shape=Dataset,
        form=drop_empty({"name": name}),
        file=FileUpload(path=Path(path), on_progress=progress),
        key=str(uuid4()),
    )


def import_dataset(source: Mapping[str, Any], *, name: str = "") -> ApiRequest[Task]:
    """Have a file fetched: `{"kind": "url", "url": …}`, `{"kind": "hub", "id": …}` and others."""
    return _create_request("/datasets", Task, {"source": source, "name": name})


def delete_dataset(dataset_id: int) -> ApiRequest[None]:
    return ApiRequest(method="DELETE", path=f"/datasets/{dataset_id}")


def task(chore_id: int) -> ApiRequest[Task]:
    return _get_request(f"/chores/{chore_id}", Task)


def models() -> PagedRequest[Model]:
    return PagedRequest(path="/models", shape=Model)


def model(name: str | int) -> ApiRequest[Model]:
    return _get_request(f"/models/{name}", Model)


def add_model(path: str, *, name: str | None = None) -> ApiRequest[Model]:
    """List a folder of the studio's machine among the models that runs can start from."""
    return _create_request(
        "/models", Model, {"source": {"kind": "folder", "path": path}, "name": name}
    )


def download_model(hub_id: str, *, revision: str = "", name: str | None = None) -> ApiRequest[Task]:
    source = {"kind": "hub", "id": hub_id, "revision": revision}
    return _create_request("/models", Task, {"source": source, "name": name})


def sweeps() -> PagedRequest[Sweep]:
    return PagedRequest(path="/sweeps", shape=Sweep)


def sweep(sweep_id: int) -> ApiRequest[Sweep]:
    return _get_request(f"/sweeps/{sweep_id}", Sweep)


def create_sweep(experiment_id: int, space: Recipe, **how: Any) -> ApiRequest[Sweep]:  # noqa: ANN401 -- as the API takes it
    """Search a space of settings: `strategy`, `count`, `metric`, `parallel` and others say how."""
    return _create_request(
        "/sweeps", Sweep, {"experiment_id": experiment_id, "space": space, **how}
    )


def preview_sweep(experiment_id: int, space: Recipe, **how: Any) -> ApiRequest[SweepPreview]:  # noqa: ANN401 -- as the API takes it
    """Tell what such a sweep would come to."""
    body = {"experiment_id": experiment_id, "space": space, **how}
    return _post_request("/sweeps/prospect", SweepPreview, body)


def stop_sweep(sweep_id: int) -> ApiRequest[Sweep]:
    return _post_request(f"/sweeps/{sweep_id}/stop", Sweep)


def compare(run_ids: Sequence[int], *, base: int | None = None) -> ApiRequest[Comparison]:
    """Tell what differs between runs, and their numbers against those of the base."""
    return _get_request("/compare", Comparison, runs=",".join(map(str, run_ids)), base=base)


def queue() -> ApiRequest[Queue]:
    return _get_request("/queue", Queue)


def _get_request(path: str, shape: Any, **params: Any) -> ApiRequest[Any]:  # noqa: ANN401 -- the shape says what comes back
    return ApiRequest(method="GET", path=path, shape=shape, params=drop_empty(params))


def _post_request(path: str, shape: Any, body: Any = None) -> ApiRequest[Any]:  # noqa: ANN401 -- the shape says what comes back
    return ApiRequest(method="POST", path=path, shape=shape, body=body)


def _create_request(path: str, shape: Any, body: Any) -> ApiRequest[Any]:  # noqa: ANN401 -- the shape says what comes back
    return ApiRequest(method="POST", path=path, shape=shape, body=body, key=str(uuid4()))
