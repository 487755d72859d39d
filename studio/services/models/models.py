"""Base models that runs start from: the starter, folders, hub models, and trained models."""

import difflib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import JSON, String, type_coerce
from sqlmodel import Session, col, or_, select, update

from studio.db.endpoints import Endpoint
from studio.db.states import FINAL
from studio.db.tables import Model, Run
from studio.errors import ConflictError, InvalidError, NotFoundError
from studio.methods import AnyRecipe, model_compatibility
from studio.network import hub_client
from studio.recipe.base import TEACHER_PARAM
from studio.services.models import remote_code_trust
from studio.services.storage import atomic_dirs
from studio.weights import encoders, model_files, model_metadata, safetensors_headers
from studio.weights import model_facts as weights

_FOLDERS = frozenset({"models", "runs"})
"""Folders in the home that hold models."""

_FACTS = ("model_type", "architectures", "num_hidden_layers", "hidden_size", "vocab_size", "dtype")


def newest(db: Session, *, limit: int | None = None, before: int | None = None) -> Sequence[Model]:
    query = select(Model).order_by(col(Model.id).desc()).limit(limit)
    if before is not None:
        query = query.where(col(Model.id) < before)
    return db.exec(query).all()


def get(db: Session, model_id: int) -> Model:
    model = db.get(Model, model_id)
    if model is None:
        raise NotFoundError(f"Model {model_id} does not exist.", hint="It may have been removed.")
    return model


def require(db: Session, name: str) -> str:
    """Return where a recipe's base model is: a folder, or a name on the hub.

    Raises:
        InvalidError: It is not a listed model, a model folder or a name on the hub; or it needs
            remote code that was not allowed.

    """
    models_by_name = {model.name: model for model in newest(db)}
    if name in models_by_name:
        remote_code_trust.require_consent(models_by_name[name])
        return models_by_name[name].location
    folder = _expand_user(name)
    if folder.is_absolute():
        read_facts(folder)
        remote_code_trust.require_no_code(folder)
        return str(folder)
    if hub_client.REPO_ID.fullmatch(name):
        return name
    suggestions = (
        difflib.get_close_matches(name, models_by_name, n=3, cutoff=0.3)
        or sorted(models_by_name)[:3]
    )
    hints = (
        f"Did you mean {' or '.join(suggestions)}?",
        "Write a hub model as owner/name, and a folder as an absolute path.",
    )
    raise InvalidError(
        f"There is no model named {name}.",
        hint=" ".join(hints),
        param="base_model",
    )


def job_fields(db: Session, recipe: AnyRecipe) -> dict[str, str]:
    """Return what a `JobSpec` says of a recipe's models: where each is, and what code may run.

    Raises:
        InvalidError: One of them does not exist, or needs code that was not allowed.

    """
    own = {"model": require(db, recipe.base_model), "code": _allowed_code(db, recipe.base_model)}
    if recipe.teacher is None:
        return own
    name = recipe.teacher.name
    try:
        return {**own, "teacher": require(db, name), "teacher_code": _allowed_code(db, name)}
    except InvalidError as error:
        raise InvalidError(error.message, hint=error.hint, param=TEACHER_PARAM) from error


def _allowed_code(db: Session, name: str) -> str:
    return remote_code_trust.allowed_code_hash(find_by_name(db, name))


def find_by_name(db: Session, name: str) -> Model | None:
    return db.exec(select(Model).where(Model.name == name)).first()


def reads_plain_text(db: Session, name: str) -> bool:
    """Whether a model reads texts without a chat template, as encoders do.

    Raises:
        InvalidError: There is no such model.

    """
    return encoders.find(_read_config(db, name)) is not None


def max_tokens(db: Session, name: str) -> int | None:
    """Return how many tokens of a text an encoder reads at most; None if nothing limits it.

    Raises:
        InvalidError: There is no such model.

    """
    return encoders.max_tokens(_read_config(db, name))


def _read_config(db: Session, name: str) -> dict[str, Any]:
    """Return the config of a model; {} for one on the hub."""
    folder = Path(require(db, name))
    return weights.read_config(folder / "config.json") if folder.is_absolute() else {}


def require_free_name(db: Session, name: str) -> None:
    """Refuse a name that another model or an endpoint has.

    Raises:
        ConflictError: The name is taken.

    """
    if find_by_name(db, name):
        raise ConflictError(
            f"A model named {name} already exists.", hint="Choose another name.", param="name"
        )
    if db.exec(select(Endpoint.id).where(Endpoint.name == name)).first() is not None:
        raise ConflictError(
            f"An endpoint named {name} already exists.", hint="Choose another name.", param="name"
        )


def add_folder(db: Session, location: str, name: str = "") -> Model:
    """Add a model folder; without a name, use the folder's.

    Raises:
        ConflictError: The name is taken.
        InvalidError: The folder holds no model that can be loaded.

    """
    folder = _expand_user(location)
    if not folder.is_absolute():
        raise InvalidError(
            f"{location} is not an absolute path: start it with /.", param="source.path"
        )
    facts = read_facts(folder)
    config = weights.from_config(folder)
    model_compatibility.refuse_untrainable(config.kind, config.family, "source.path")
    if not facts["parameters"]:
        raise InvalidError(
            f"{folder} has a config but no weights.",
            hint=f"A model folder needs {safetensors_headers.WEIGHTS_FILE}, "
            "or its shards and their index.",
            param="source.path",
        )
    return add(db, name or folder.name, str(folder), kind="folder")


def add(db: Session, name: str, location: str, kind: str) -> Model:
    """Add a folder to the list. An unreadable one is added, too, and its page shows the error.

    Raises:
        ConflictError: The name is taken.

    """
    require_free_name(db, name)
    model = Model(name=name, kind=kind, location=location, facts=_facts_or_empty(Path(location)))
    db.add(model)
    db.flush()
    return model


def add_from_run(db: Session, run: Run, artifacts: Path) -> None:
    """List the result of a full fine-tune. An adapter alone cannot be a base model."""
    if run.recipe.adapter.kind == "full" and artifacts.is_dir():
        add(db, f"run-{run.id}", str(artifacts), kind="run").run_id = run.id


def relocate(db: Session, home: Path) -> None:
    """Make paths of older versions relative to the home, so that the home can be moved.

    If the home was moved before, find the models by the names of their folders in it.
    """
    # The stored text: the column type would turn it into an absolute path.
    stored_location = type_coerce(col(Model.location), String)
    rows = db.exec(select(Model.id, stored_location).where(stored_location.startswith("/")))
    for model_id, location in rows.all():
        new_location = _relocated(Path(location), home)
        if new_location is not None:
            # Written through the column type, which stores it as a relative path.
            db.exec(
                update(Model).where(col(Model.id) == model_id).values(location=str(new_location))
            )


def refresh_facts(db: Session) -> None:
    """Read facts that older versions did not record about models in folders."""
    for model in newest(db):
        if "bytes" not in model.facts and Path(model.location).is_absolute():
            model.facts = _facts_or_empty(Path(model.location)) or model.facts


def remove(db: Session, model_id: int, parent: Path) -> None:
    """Remove a model from the list. Downloaded files are deleted; your own folders stay.

    Raises:
        ConflictError: It is built in, belongs to a run, or an unfinished run needs it.

    """
    model = get(db, model_id)
    if model.kind in {"starter", "run"}:
        raise ConflictError(
            f"{model.name} cannot be removed from the list.",
            hint="You can only remove models you added. A run's model is deleted with the run.",
        )
    if waiting := _unfinished_runs(db, model):
        raise ConflictError(
            f"Run {waiting[0].id} needs {model.name} and has not ended.",
            hint="Wait until it ends, or cancel it first.",
        )
    db.delete(model)
    if is_downloaded(model, parent):
        atomic_dirs.delete_on_commit(db, Path(model.location))


def is_downloaded(model: Model, parent: Path) -> bool:
    """Return whether the studio downloaded a model's files, and deletes them with it."""
    return bool(model.repo) and Path(model.location).parent == parent


def model_dir(model: Model) -> Path:
    return Path(model.location)


def is_local(model: Model) -> bool:
    """Return whether a model's folder exists on this machine."""
    return model_dir(model).is_absolute() and model_dir(model).is_dir()


def cleanup(db: Session, parent: Path) -> None:
    """Finish deletions that a kill interrupted."""
    atomic_dirs.finish_deletions(parent, {Path(model.location).name for model in newest(db)})


def list_runs(db: Session, model: Model, limit: int = 100) -> Sequence[Run]:
    """Return the runs that start from a model, newest first."""
    base = type_coerce(col(Run.recipe), JSON)["base_model"].as_string()
    query = select(Run).where(base == model.name).order_by(col(Run.id).desc()).limit(limit)
    return db.exec(query).all()


def _unfinished_runs(db: Session, model: Model) -> Sequence[Run]:
    """Return the runs that still have to read a model: its students, too."""
    recipe = type_coerce(col(Run.recipe), JSON)
    names = (recipe["base_model"], recipe["distillation"]["teacher"])
    needs = or_(*(name.as_string() == model.name for name in names))
    return db.exec(select(Run).where(needs, col(Run.status).not_in(FINAL))).all()


def read_facts(folder: Path) -> dict[str, Any]:
    """Return facts from a model's config and weight headers, without loading the weights.

    Raises:
        InvalidError: The folder holds no model with safetensors weights.

    """
    try:
        values = weights.read_config(folder / model_files.CONFIG_FILE)
        names = [path.name for path in folder.iterdir()] if values else []
    except OSError as error:
        raise InvalidError(
            f"{str(folder)[:200]} cannot be read: {error.strerror}.", param="base_model"
        ) from error
    if not values:
        raise InvalidError(
            f"{folder} does not contain a model.",
            hint="A model folder has config.json and .safetensors files.",
            param="base_model",
        )
    model_files.check_folder_files(str(folder), names)
    model_metadata.check_file_sizes(folder)
    return {name: values[name] for name in _FACTS if name in values} | _weight_facts(folder)


def _facts_or_empty(folder: Path) -> dict[str, Any]:
    try:
        return read_facts(folder)
    except InvalidError:
        return {}


def _weight_facts(folder: Path) -> dict[str, Any]:
    tensors = [
        tensor
        for file in safetensors_headers.weight_files(folder)
        for tensor in safetensors_headers.read_tensors(file)
    ]
    card, config = model_metadata.read(folder), weights.from_config(folder)
    sizes = Counter[str]()
    for tensor in tensors:
        sizes[tensor.dtype] += tensor.size if tensor.is_float else 0
    return {
        "parameters": sizes.total(),
        "native": max(sizes, key=lambda one: sizes[one], default=config.declared_dtype),
        "bytes": card.bytes,
        "context": card.context_length,
        "licence": card.licence,
        "template": bool(card.template_file),
    }


def _expand_user(name: str) -> Path:
    try:
        return Path(name).expanduser()
    except RuntimeError:  # "~name" of a user without a home folder
        return Path(name)


def _relocated(folder: Path, home: Path) -> Path | None:
    """Return where a folder is in the home, if it is or was there."""
    if folder.is_relative_to(home) or folder.exists():
        return folder if folder.is_relative_to(home) else None
    parts = folder.parts
    tails = (home.joinpath(*parts[i:]) for i, part in enumerate(parts) if part in _FOLDERS)
    return next((tail for tail in tails if tail.is_dir()), None)
