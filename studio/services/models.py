"""Models that runs can start from: the starter, folders, names on the hub, and trained ones."""

import difflib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import String, type_coerce
from sqlmodel import Session, col, select, update

from studio.db.tables import Model, Run
from studio.errors import ConflictError, InvalidError, NotFoundError
from studio.weights import facts as weights

HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
"""`owner/name`, as the Hugging Face hub spells it."""

_FOLDERS = frozenset({"models", "runs"})
"""Folders of a home that hold models."""

_FACTS = ("model_type", "architectures", "num_hidden_layers", "hidden_size", "vocab_size", "dtype")


def newest(db: Session) -> Sequence[Model]:
    return db.exec(select(Model).order_by(col(Model.id).desc())).all()


def get(db: Session, model_id: int) -> Model:
    model = db.get(Model, model_id)
    if model is None:
        raise NotFoundError(f"There is no model {model_id}.", hint="It may have been removed.")
    return model


def require(db: Session, name: str) -> str:
    """Return where a recipe's base model is: a folder, or a name on the hub.

    Raises:
        InvalidError: it is no model of ours, no folder with a model, and no name on the hub.

    """
    known = {model.name: model.location for model in newest(db)}
    if name in known:
        return known[name]
    folder = _folder(name)
    if folder.is_absolute():
        read_facts(folder)
        return str(folder)
    if HUB_NAME.fullmatch(name):
        return name
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.3) or sorted(known)[:3]
    raise InvalidError(
        f"There is no model called {name}.",
        hint=f"Did you mean {' or '.join(near)}? A hub model is written owner/name; "
        "a folder starts with /.",
        param="base_model",
    )


def add(db: Session, name: str, location: str, kind: str) -> Model:
    """Add a folder or a hub name to the list.

    Raises:
        ConflictError: the name is taken.
        InvalidError: the folder holds no model, or the hub has no such spelling.

    """
    if db.exec(select(Model).where(Model.name == name)).first():
        raise ConflictError(f"There is a model called {name} already.", hint="Choose another name.")
    facts: dict[str, Any] = {}
    if kind == "hub":
        if not HUB_NAME.fullmatch(location):
            raise InvalidError(f"{location} is not written owner/name.", param="location")
    elif not Path(location).is_absolute():
        raise InvalidError(f"{location} does not start with /.", param="location")
    else:
        facts = read_facts(Path(location))
    model = Model(name=name, kind=kind, location=location, facts=facts)
    db.add(model)
    db.flush()
    return model


def add_from_run(db: Session, run: Run, artifacts: Path) -> None:
    """List what a full fine-tune made. An adapter alone is no base to start from."""
    if run.recipe.adapter.kind == "full" and artifacts.is_dir():
        add(db, f"run-{run.id}", str(artifacts), kind="run").run_id = run.id


def keep_inside(db: Session, home: Path) -> None:
    """Mend rows of versions that wrote down where the home was, so that it may be moved.

    A home that was moved before is recognised by what stands in it under the same names.
    """
    # As it was written: the column itself would have made a whole path of it.
    written = type_coerce(col(Model.location), String)
    rows = db.exec(select(Model.id, written).where(written.startswith("/")))
    for model_id, location in rows.all():
        found = _inside(Path(location), home)
        if found is not None:
            # Written through the column, which keeps it relative.
            db.exec(update(Model).where(col(Model.id) == model_id).values(location=str(found)))


def remove(db: Session, model_id: int) -> None:
    """Take a model off the list; its files stay."""
    model = get(db, model_id)
    if model.kind in {"starter", "run"}:
        raise ConflictError(
            f"{model.name} belongs to the studio.", hint="Only models you added can be removed."
        )
    db.delete(model)


def read_facts(folder: Path) -> dict[str, Any]:
    """Return what a model's config says of it, without loading any weights.

    Raises:
        InvalidError: the folder holds no model with safetensors weights.

    """
    config = folder / "config.json"
    try:
        values = weights.config(config)
    except OSError as error:
        raise InvalidError(
            f"{str(folder)[:200]} cannot be read: {error.strerror}.", param="base_model"
        ) from error
    if not values:
        raise InvalidError(
            f"{folder} holds no model.",
            hint="A model's folder has a config.json and .safetensors files.",
            param="base_model",
        )
    return {name: values[name] for name in _FACTS if name in values}


def _folder(name: str) -> Path:
    try:
        return Path(name).expanduser()
    except RuntimeError:  # ~somebody who has no home here
        return Path(name)


def _inside(folder: Path, home: Path) -> Path | None:
    """Return where a folder is in the home, if it is or was there."""
    if folder.is_relative_to(home) or folder.exists():
        return folder if folder.is_relative_to(home) else None
    parts = folder.parts
    tails = (home.joinpath(*parts[i:]) for i, part in enumerate(parts) if part in _FOLDERS)
    return next((tail for tail in tails if tail.is_dir()), None)
