"""Consent to the code that a model brings: given by a person, for one revision, taken back at will.

A model whose configs name code of its own is refused until somebody has looked at that code and
allowed it. What is allowed is known by its hash, so nothing that came later runs in its place.
"""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlmodel import Session

from studio.db.owners import current_actor
from studio.db.tables import Model
from studio.errors import ConflictError, InvalidError
from studio.weights import hub_origin, model_code
from studio.weights.model_code import ModelCode

WARNING = (
    "This runs programs that a stranger wrote, with all the rights the studio has here: they can "
    "read, change and send away whatever it can. Allow it only if you have read them, or trust "
    "who made them."
)


def inspect_code(model: Model) -> ModelCode:
    """Return what a model asks to be run; nothing of one that is not here."""
    folder = Path(model.location)
    return model_code.read(folder) if folder.is_absolute() else ModelCode()


def try_inspect_code(model: Model) -> tuple[ModelCode | None, str]:
    """Return what a model asks to be run; or None, and why its files do not say."""
    try:
        return inspect_code(model), ""
    except (InvalidError, OSError) as error:
        return None, str(error)


def consent_revision(model: Model) -> str:
    """Return what consent is given to: the commit, or of a folder the hash of its code."""
    return model.revision or inspect_code(model).sha256


def grant(db: Session, model: Model, agreed: str) -> None:
    """Allow a model's own code to run, in the revision that was looked at.

    Raises:
        ConflictError: it brings none, needs none, or has another revision by now.
        InvalidError: it wants code from other repositories.

    """
    wanted = inspect_code(model)
    if not wanted.wanted:
        raise ConflictError(
            f"{model.name} brings no code of its own.", hint="It can be used as is."
        )
    _refuse_external_code(model.name, wanted)
    if agreed != consent_revision(model):
        raise ConflictError(
            f"{model.name} is not at that revision.",
            hint="Look at it again: its code may have changed.",
            param="revision",
        )
    at = datetime.now(UTC).isoformat()
    model.consent = {
        "revision": agreed,
        "sha256": _code_hash(wanted),
        "by": current_actor().name,
        "at": at,
    }
    db.add(model)


def record_downloaded_code(model: Model) -> None:
    """Note the code that has come after it was allowed."""
    if model.consent is not None:
        model.consent = model.consent | {"sha256": _code_hash(inspect_code(model))}


def revoke(model: Model) -> None:
    """Take consent back. Code that was downloaded for it goes, too.

    Raises:
        ConflictError: there is none.

    """
    if model.consent is None:
        raise ConflictError(f"{model.name} has no consent to take back.")
    model.consent = None
    folder = Path(model.location)
    if hub_origin.read(folder) is not None:
        for name in model_code.read(folder).files:
            (folder / name).unlink(missing_ok=True)


def allowed_code_hash(model: Model | None) -> str:
    """Return the hash of the code that a run may load with a model; nothing if none."""
    consent: dict[str, Any] = (model.consent if model else None) or {}
    return str(consent.get("sha256", ""))


def require_consent(model: Model) -> None:
    """Refuse a model whose code may not run, or is not what was allowed.

    Raises:
        InvalidError: with the reason, and what would let it run.

    """
    wanted = inspect_code(model)
    if not wanted.wanted:
        return
    _refuse_external_code(model.name, wanted)
    if model.consent is None:
        raise _code_refused_error(
            model.name, wanted, "Look at it, and allow it, on the model's page."
        )
    if wanted.lacking:
        raise InvalidError(
            f"The code of {model.name} is allowed and not here yet.",
            hint="It is being fetched; the model's page shows how far it is.",
            param="base_model",
        )
    if wanted.sha256 != model.consent["sha256"]:
        raise InvalidError(
            f"The code of {model.name} is not what was allowed: it has changed since.",
            hint="Look at it, and allow it anew, on the model's page.",
            param="base_model",
        )


def require_no_code(folder: Path) -> None:
    """Refuse a folder that is no model of the studio's and brings code.

    Raises:
        InvalidError: it does.

    """
    wanted = model_code.read(folder)
    if wanted.wanted:
        raise _code_refused_error(
            str(folder), wanted, "Add it on the models page; there it can be allowed."
        )


def _code_refused_error(name: str, wanted: ModelCode, hint: str) -> InvalidError:
    return InvalidError(
        f"{name} wants to run code that it brings ({wanted.wanted[0][:100]}), which nobody has "
        "allowed.",
        hint=hint,
        param="base_model",
    )


def _refuse_external_code(name: str, wanted: ModelCode) -> None:
    if wanted.elsewhere:
        raise InvalidError(
            f"{name} wants code from another repository ({wanted.elsewhere[0][:100]}).",
            hint="Only code beside the weights can be looked at and allowed: take a model that "
            "has its own.",
            param="base_model",
        )


def _code_hash(wanted: ModelCode) -> str:
    return "" if wanted.lacking else wanted.sha256
