"""Trust in a model's remote code: granted by a user, for one revision, and revocable.

A model whose configs name custom code is refused until a user has reviewed and allowed that code.
Allowed code is identified by its hash, so changed code does not run.
"""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlmodel import Session

from studio.db.owners import current_actor
from studio.db.tables import Model
from studio.errors import ConflictError, InvalidError
from studio.weights import model_files, model_metadata
from studio.weights.model_files import ModelCode

WARNING = (
    "This runs third-party code with all permissions of the studio: it can read, change and upload "
    "anything the studio can access. Allow it only if you have reviewed the code or trust "
    "its author."
)


def inspect_code(model: Model) -> ModelCode:
    """Return the custom code a model names; nothing for a model that is not on this disk."""
    folder = Path(model.location)
    return model_files.read(folder) if folder.is_absolute() else ModelCode()


def try_inspect_code(model: Model) -> tuple[ModelCode | None, str]:
    """Return a model's custom code; or None, and why its files cannot be read."""
    try:
        return inspect_code(model), ""
    except (InvalidError, OSError) as error:
        return None, str(error)


def consent_revision(model: Model) -> str:
    """Return what consent is given to: the commit, or the hash of a local folder's code."""
    return model.revision or inspect_code(model).sha256


def grant(db: Session, model: Model, agreed: str) -> None:
    """Allow a model's code to run, in the revision that was reviewed.

    Raises:
        ConflictError: It has no custom code, or is at another revision now.
        InvalidError: It needs code from other repositories.

    """
    code = inspect_code(model)
    if not code.requested:
        raise ConflictError(f"{model.name} has no custom code.", hint="You can use it as is.")
    _refuse_external_code(model.name, code)
    if agreed != consent_revision(model):
        raise ConflictError(
            f"{model.name} is not at that revision.",
            hint="Review it again: its code may have changed.",
            param="revision",
        )
    granted_at = datetime.now(UTC).isoformat()
    model.consent = {
        "revision": agreed,
        "sha256": _code_hash(code),
        "by": current_actor().name,
        "at": granted_at,
    }
    db.add(model)


def record_downloaded_code(model: Model) -> None:
    """Record the hash of code that was downloaded after it was allowed."""
    if model.consent is not None:
        model.consent = model.consent | {"sha256": _code_hash(inspect_code(model))}


def revoke(model: Model) -> None:
    """Revoke consent, and delete the code that was downloaded for it.

    Raises:
        ConflictError: There is no consent.

    """
    if model.consent is None:
        raise ConflictError(
            f"The code of {model.name} is not allowed, so there is nothing to revoke."
        )
    model.consent = None
    folder = Path(model.location)
    if model_metadata.read_origin(folder) is not None:
        for name in model_files.read(folder).files:
            (folder / name).unlink(missing_ok=True)


def allowed_code_hash(model: Model | None) -> str:
    """Return the hash of the code that a run may load with a model; empty if none."""
    consent: dict[str, Any] = (model.consent if model else None) or {}
    return str(consent.get("sha256", ""))


def require_consent(model: Model) -> None:
    """Refuse a model whose code is not allowed, or has changed since.

    Raises:
        InvalidError: With the reason, and how to allow it.

    """
    code = inspect_code(model)
    if not code.requested:
        return
    _refuse_external_code(model.name, code)
    if model.consent is None:
        raise _code_refused_error(model.name, code, "Review and allow it on the model's page.")
    if code.missing_files:
        raise InvalidError(
            f"The code of {model.name} is allowed but not downloaded yet.",
            hint="The model's page shows the download's progress.",
            param="base_model",
        )
    if code.sha256 != model.consent["sha256"]:
        raise InvalidError(
            f"The code of {model.name} has changed since it was allowed.",
            hint="Review and allow it again on the model's page.",
            param="base_model",
        )


def require_no_code(folder: Path) -> None:
    """Refuse a folder that is not a listed model and has custom code.

    Raises:
        InvalidError: It has.

    """
    code = model_files.read(folder)
    if code.requested:
        raise _code_refused_error(
            str(folder), code, "Add it on the Models page, and allow its code there."
        )


def _code_refused_error(name: str, code: ModelCode, hint: str) -> InvalidError:
    return InvalidError(
        f"{name} needs to run custom code ({code.requested[0][:100]}) that has not been allowed.",
        hint=hint,
        param="base_model",
    )


def _refuse_external_code(name: str, code: ModelCode) -> None:
    if code.external:
        raise InvalidError(
            f"{name} needs code from another repository ({code.external[0][:100]}).",
            hint="Only code in the model's own repository can be reviewed and allowed: use a model "
            "that includes its code.",
            param="base_model",
        )


def _code_hash(code: ModelCode) -> str:
    return "" if code.missing_files else code.sha256
