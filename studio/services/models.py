"""Models that runs can start from: the starter, folders, names on the hub, and trained ones."""

import difflib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sqlmodel import Session, col, select

from studio.db.tables import Model, Run
from studio.errors import ConflictError, InvalidError, NotFoundError

HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
"""`owner/name`, as the Hugging Face hub spells it."""

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
    folder = Path(name).expanduser()
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
    if not config.is_file():
        raise InvalidError(
            f"{folder} holds no model.",
            hint="A model's folder has a config.json and .safetensors files.",
            param="base_model",
        )
    try:
        values = json.loads(config.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise InvalidError(f"{config} is not readable JSON.", param="base_model") from error
    return {name: values[name] for name in _FACTS if name in values}
