"""Every call, declared once: what is sent, and as what the answer is read. Nothing is sent here."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

from studio.client.request import Call, Heard, Listed, Sending, given
from studio.client.schemas import (
    Chore,
    Comparison,
    Curves,
    Dataset,
    Experiment,
    File,
    Model,
    Page,
    Prospect,
    Queue,
    Run,
    Sweep,
)

Recipe = Mapping[str, Any]


def submit_run(name: str, recipe: Recipe, *, notes: str = "") -> Call[Run]:
    """Make an experiment of a recipe, and queue its first run."""
    return _make("/runs", Run, {"name": name, "recipe": recipe, "notes": notes})


def run(run_id: int) -> Call[Run]:
    """Tell all of a run."""
    return _get(f"/runs/{run_id}", Run)


def runs(query: str = "", *, sort: str = "-created", **filters: str | int) -> Listed[Run]:
    """List the runs that a query finds; filters as `status="failed"`, `tag` or `precision`."""
    return Listed(path="/runs", shape=Run, params=given({"q": query, "sort": sort, **filters}))


def change_run(run_id: int, **changes: Any) -> Call[Run]:  # noqa: ANN401 -- as the API takes it
    """Change name, notes, tags, priority, or whether it is held, archived or in the trash."""
    return Call(method="PATCH", path=f"/runs/{run_id}", shape=Run, body=changes)


def delete_run(run_id: int) -> Call[None]:
    """Remove a run for good, with its numbers and files."""
    return Call(method="DELETE", path=f"/runs/{run_id}")


def cancel_run(run_id: int) -> Call[Run]:
    return _act(f"/runs/{run_id}/cancel", Run)


def keep_run(run_id: int) -> Call[Run]:
    """Stop a run, and keep what it has learnt as its result."""
    return _act(f"/runs/{run_id}/keep", Run)


def pause_run(run_id: int) -> Call[Run]:
    return _act(f"/runs/{run_id}/pause", Run)


def resume_run(run_id: int) -> Call[Run]:
    return _act(f"/runs/{run_id}/resume", Run)


def retry_run(run_id: int, *, from_start: bool = False) -> Call[Run]:
    """Have a run that has ended badly go on from its newest checkpoint, or begin anew."""
    place = "start" if from_start else "checkpoint"
    return _act(f"/runs/{run_id}/retry", Run, {"from": place})


def move_run(run_id: int, place: int) -> Call[Run]:
    return _act(f"/runs/{run_id}/move", Run, {"place": place})


def again(run_id: int, overrides: Recipe | None = None) -> Call[Run]:
    """Queue the recipe of a run once more, with some of its values changed."""
    return _make(f"/runs/{run_id}/again", Run, {"overrides": overrides or {}})


def metrics(
    run_id: int,
    keys: Sequence[str] = (),
    *,
    x: str = "step",
    buckets: int = 1000,
    between: tuple[float | None, float | None] = (None, None),
) -> Call[Curves]:
    """Tell the numbers of a run along an axis; by default all of them, along the steps."""
    asked = {"keys": ",".join(keys), "x": x, "buckets": buckets}
    ends = {"from": between[0], "to": between[1]}
    return _get(f"/runs/{run_id}/metrics", Curves, **asked, **ends)


def artifacts(run_id: int) -> Call[Page[File]]:
    return _get(f"/runs/{run_id}/artifacts", Page[File])


def experiments() -> Listed[Experiment]:
    return Listed(path="/experiments", shape=Experiment)


def experiment(experiment_id: int) -> Call[Experiment]:
    return _get(f"/experiments/{experiment_id}", Experiment)


def create_experiment(
    name: str, recipe: Recipe, *, notes: str = "", tags: Sequence[str] = ()
) -> Call[Experiment]:
    body = {"name": name, "recipe": recipe, "notes": notes, "tags": list(tags)}
    return _make("/experiments", Experiment, body)


def run_experiment(
    experiment_id: int,
    *,
    overrides: Recipe | None = None,
    sweep: Mapping[str, Sequence[Any]] | None = None,
    priority: int = 0,
) -> Call[Page[Run]]:
    """Queue one run, or one for every combination of values: `{"precision": ["fp32", "bf16"]}`."""
    body = {"overrides": overrides or {}, "sweep": sweep or {}, "priority": priority}
    return _make(f"/experiments/{experiment_id}/runs", Page[Run], body)


def delete_experiment(experiment_id: int) -> Call[None]:
    return Call(method="DELETE", path=f"/experiments/{experiment_id}")


def datasets() -> Listed[Dataset]:
    return Listed(path="/datasets", shape=Dataset)


def dataset(dataset_id: int) -> Call[Dataset]:
    return _get(f"/datasets/{dataset_id}", Dataset)


def add_dataset(
    path: Path | str, *, name: str = "", progress: Heard = lambda _sent, _size: None
) -> Call[Dataset]:
    """Upload a file; `progress` is told how many bytes of how many have gone."""
    return Call(
        method="POST",
        path="/datasets",
        shape=Dataset,
        form=given({"name": name}),
        file=Sending(path=Path(path), heard=progress),
        key=str(uuid4()),
    )


def bring_dataset(source: Mapping[str, Any], *, name: str = "") -> Call[Chore]:
    """Have a file fetched: `{"kind": "url", "url": …}`, `{"kind": "hub", "id": …}` and others."""
    return _make("/datasets", Chore, {"source": source, "name": name})


def delete_dataset(dataset_id: int) -> Call[None]:
    return Call(method="DELETE", path=f"/datasets/{dataset_id}")


def chore(chore_id: int) -> Call[Chore]:
    return _get(f"/chores/{chore_id}", Chore)


def models() -> Listed[Model]:
    return Listed(path="/models", shape=Model)


def model(name: str | int) -> Call[Model]:
    return _get(f"/models/{name}", Model)


def add_model(path: str, *, name: str | None = None) -> Call[Model]:
    """List a folder of the studio's machine among the models that runs can start from."""
    return _make("/models", Model, {"source": {"kind": "folder", "path": path}, "name": name})


def download_model(hub_id: str, *, revision: str = "", name: str | None = None) -> Call[Chore]:
    source = {"kind": "hub", "id": hub_id, "revision": revision}
    return _make("/models", Chore, {"source": source, "name": name})


def sweeps() -> Listed[Sweep]:
    return Listed(path="/sweeps", shape=Sweep)


def sweep(sweep_id: int) -> Call[Sweep]:
    return _get(f"/sweeps/{sweep_id}", Sweep)


def create_sweep(experiment_id: int, space: Recipe, **how: Any) -> Call[Sweep]:  # noqa: ANN401 -- as the API takes it
    """Search a space of settings: `strategy`, `count`, `metric`, `parallel` and others say how."""
    return _make("/sweeps", Sweep, {"experiment_id": experiment_id, "space": space, **how})


def prospect(experiment_id: int, space: Recipe, **how: Any) -> Call[Prospect]:  # noqa: ANN401 -- as the API takes it
    """Tell what such a sweep would come to."""
    body = {"experiment_id": experiment_id, "space": space, **how}
    return _act("/sweeps/prospect", Prospect, body)


def stop_sweep(sweep_id: int) -> Call[Sweep]:
    return _act(f"/sweeps/{sweep_id}/stop", Sweep)


def compare(run_ids: Sequence[int], *, base: int | None = None) -> Call[Comparison]:
    """Tell what differs between runs, and their numbers against those of the base."""
    return _get("/compare", Comparison, runs=",".join(map(str, run_ids)), base=base)


def queue() -> Call[Queue]:
    return _get("/queue", Queue)


def _get(path: str, shape: Any, **params: Any) -> Call[Any]:  # noqa: ANN401 -- the shape says what comes back
    return Call(method="GET", path=path, shape=shape, params=given(params))


def _act(path: str, shape: Any, body: Any = None) -> Call[Any]:  # noqa: ANN401 -- the shape says what comes back
    return Call(method="POST", path=path, shape=shape, body=body)


def _make(path: str, shape: Any, body: Any) -> Call[Any]:  # noqa: ANN401 -- the shape says what comes back
    return Call(method="POST", path=path, shape=shape, body=body, key=str(uuid4()))
