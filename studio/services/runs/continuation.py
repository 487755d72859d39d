"""Runs that continue from another run: from its model, or with its adapter."""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from sqlalchemy import JSON, type_coerce
from sqlmodel import Session, col, or_, select

from studio.db.states import RunStatus
from studio.db.tables import Model, Run
from studio.errors import InvalidError
from studio.methods import AnyRecipe
from studio.protocols.run_dir import RunDir
from studio.recipe.adapters import Adapter, Lora
from studio.recipe.dotted_keys import flatten
from studio.recipe.model_options import ModelOptions
from studio.services.models import models
from studio.services.precision.incompatibilities import Refusal

PARAM = "adapter.continue_from"
_FREE = {"lora_dropout", "lr_ratio", "base_dtype", "continue_from"}
"""Settings of an adapter that may change when training continues; all others shape its weights."""

_MODEL = {"rope_type", "rope_factor", "new_tokens"}
"""Settings that change the base model which an adapter is trained on."""

_ADAPTER_FILES = {"adapter_config.json", "adapter_model.safetensors"}
_MERGE_HINT = "Merge it on its Files page, and start from the merged model."
_MAX_CHILDREN = 20
_MAX_GENERATIONS = 50
"""Longest chain of runs to follow."""


def name_of(run: Run) -> str:
    """Return the name by which a recipe continues from a run: `run-12`."""
    return f"run-{run.id}"


def start_values(run: Run) -> dict[str, Any]:
    """Return the settings that make a recipe continue from a run.

    Raises:
        InvalidError: its adapter cannot be continued.

    """
    if not isinstance(run.recipe.adapter, Adapter):
        if not run.recipe.writes_text:
            raise InvalidError(
                f"The model of run {run.id} writes no text, so training cannot continue from it.",
                hint="Start from its base model.",
                param="base_model",
            )
        return {"base_model": name_of(run), **_unchanged_model(run)}
    return {
        "base_model": run.recipe.base_model,
        "adapter": {**_saved_shape(run.recipe.adapter), "continue_from": name_of(run)},
        "model": run.recipe.model.model_dump(include=_MODEL),
    }


def _unchanged_model(run: Run) -> dict[str, Any]:
    """Return the settings that leave the model of a run as it is: it has its changes already."""
    changed = ModelOptions().model_dump(include=_MODEL)
    is_same = run.recipe.model.model_dump(include=_MODEL) == changed
    return {} if is_same else {"model": changed}


def start_url(run: Run) -> str:
    """Return the URL of a form that continues from a run; empty if that is impossible."""
    try:
        values = start_values(run)
    except InvalidError:
        return ""
    # The form starts with the recipe of the run.
    same = flatten(run.recipe.model_dump()).items()
    changed = dict(flatten(values).items() - same)
    return f"/new?from=run:{run.id}&{urlencode(sorted(changed.items()))}"


def check(db: Session, recipe: AnyRecipe) -> list[Refusal]:
    """Return why a recipe cannot continue from the run it names, worst first."""
    name = recipe.adapter.continue_from
    if name is None:
        return []
    try:
        parent = _require_parent(db, name)
        values = start_values(parent)
    except InvalidError as error:
        return [Refusal(message=error.message, hint=error.hint, param=PARAM)]
    if not isinstance(parent.recipe.adapter, Adapter):
        return [
            Refusal(
                message=f"Run {parent.id} trained the model's own weights and has no adapter.",
                hint="Use its model as the base model.",
                param=PARAM,
                repair={"base_model": name, "adapter": {"continue_from": None}},
            )
        ]
    return list(_mismatches(db, recipe, parent, values))


def copy_adapter(db: Session, run: Run, folder: RunDir, runs: Path) -> Path | None:
    """Copy the adapter that a run continues from into its folder, and return the copy.

    A run that resumes keeps its copy, so that its parent may be deleted meanwhile.

    Raises:
        InvalidError: the parent or its adapter no longer exists.

    """
    name = run.recipe.adapter.continue_from
    if name is None:
        return None
    copy = folder.parent_adapter
    if run.resumes and copy.is_dir():
        return copy
    parent = RunDir(runs / str(_require_parent(db, name).id))
    if not parent.artifacts.is_dir():
        raise InvalidError(
            f"The adapter of {name} has been deleted.",
            hint="Continue from another run, or start with a new adapter.",
            param=PARAM,
        )
    partial = copy.with_suffix(".partial")
    for old in (partial, copy):
        shutil.rmtree(old, ignore_errors=True)
    shutil.copytree(
        parent.artifacts, partial, ignore=lambda _folder, names: set(names) - _ADAPTER_FILES
    )
    partial.rename(copy)
    return copy


def children(db: Session, run: Run) -> Sequence[Run]:
    """Return the newest runs that continue from a run."""
    recipe = type_coerce(col(Run.recipe), JSON)
    names = db.exec(select(Model.name).where(Model.run_id == run.id)).all()
    continues = or_(
        recipe["base_model"].as_string().in_(names),
        recipe["adapter"]["continue_from"].as_string() == name_of(run),
    )
    query = select(Run).where(continues, col(Run.deleted_at).is_(None))
    return db.exec(query.order_by(col(Run.id).desc()).limit(_MAX_CHILDREN)).all()


def ancestors(db: Session, run: Run) -> list[Run]:
    """Return the run that a run continues from, the one before that, and so on."""
    found: list[Run] = []
    while len(found) < _MAX_GENERATIONS and (parent := _find_parent(db, run)) is not None:
        found.append(parent)
        run = parent
    return found


def trained_by(db: Session, model: Model) -> list[Run]:
    """Return the runs that trained a model, the last first; none if it was not trained here."""
    run = db.get(Run, model.run_id) if model.run_id is not None else None
    return [] if run is None else [run, *ancestors(db, run)]


def _find_parent(db: Session, run: Run) -> Run | None:
    name = run.recipe.adapter.continue_from
    if name is not None:
        return db.get(Run, _id_of(name))
    base = models.find_by_name(db, run.recipe.base_model)
    return None if base is None or base.run_id is None else db.get(Run, base.run_id)


def _id_of(name: str) -> int:
    return int(name.removeprefix("run-"))


def _require_parent(db: Session, name: str) -> Run:
    parent = db.get(Run, _id_of(name))
    if parent is None or parent.deleted_at is not None:
        raise InvalidError(
            f"There is no {name} to continue from.",
            hint="Name a run that has ended, or start with a new adapter.",
            param=PARAM,
        )
    if parent.status is not RunStatus.SUCCEEDED:
        raise InvalidError(
            f"Run {parent.id} has no result to continue from.",
            hint="Wait until it has succeeded, or continue from another run.",
            param=PARAM,
        )
    return parent


def _saved_shape(adapter: Adapter) -> dict[str, Any]:
    """Return the settings of an adapter like the one that a run with this adapter saved.

    PiSSA and OLoRA save plain LoRA of twice the rank, at the same scale; LoftQ plain LoRA that fits
    one format only.
    """
    shape = adapter.model_dump(exclude=_FREE)
    if not isinstance(adapter, Lora) or not adapter.lora_variant.changes_start:
        return shape
    variant = adapter.lora_variant
    if not variant.changes_base:
        # It holds what this very format has rounded away.
        return {**shape, "variant": "plain", "base_dtype": adapter.base_dtype}
    if adapter.use_rslora:
        raise InvalidError(
            f"Rank-stabilised {variant.title} saves an adapter whose alpha is not a whole number, "
            "so it cannot be continued.",
            hint=_MERGE_HINT,
            param=PARAM,
        )
    doubled = {"r": 2 * adapter.r, "lora_alpha": 2 * adapter.lora_alpha, "variant": "plain"}
    return {**shape, **doubled}


def _mismatches(
    db: Session, recipe: AnyRecipe, parent: Run, values: Mapping[str, Any]
) -> Iterator[Refusal]:
    if parent.recipe.outputs not in ("text", recipe.outputs):
        yield Refusal(
            message=f"The adapter of run {parent.id} belongs to a model that writes no text.",
            hint="Continue it with the same method, or start with a new adapter.",
            param=PARAM,
            repair={"adapter": {"continue_from": None}},
        )
    base = values["base_model"]
    if models.require(db, recipe.base_model) != models.require(db, base):
        yield Refusal(
            message=f"The adapter of run {parent.id} belongs to {base}, but the base model is "
            f"{recipe.base_model}.",
            hint=f"Use {base} as the base model.",
            repair={"base_model": base},
        )
    own = recipe.adapter.model_dump()
    shape = {key: value for key, value in values["adapter"].items() if own.get(key) != value}
    if shape:
        settings = ", ".join(f"{name} {value}" for name, value in shape.items())
        yield Refusal(
            message=f"The adapter of run {parent.id} has other settings: {settings}.",
            hint="Use the settings of that run's adapter.",
            param=f"adapter.{next(iter(shape))}",
            repair={"adapter": shape},
        )
    yield from _other_models(recipe.model, parent)


def _other_models(own: ModelOptions, parent: Run) -> Iterator[Refusal]:
    """Refuse positions other than those the adapter was trained with, and to lose its tokens."""
    parents = parent.recipe.model
    if own.positions != parents.positions:
        changes = parents.model_dump(include={"rope_type", "rope_factor"})
        yield Refusal(
            message=f"The adapter of run {parent.id} was trained with other positions: "
            f"{parents.positions}.",
            hint="Use the context settings of that run.",
            param="model.rope_type",
            repair={"model": changes},
        )
    if parents.new_token_texts and own.new_token_texts != parents.new_token_texts:
        yield Refusal(
            message=f"The adapter of run {parent.id} has its own tokens: "
            f"{', '.join(parents.new_token_texts)}.",
            hint="Use the new tokens of that run.",
            param="model.new_tokens",
            repair={"model": {"new_tokens": parents.new_tokens}},
        )
