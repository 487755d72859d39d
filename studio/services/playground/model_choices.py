"""The models that the playground offers: base models, results of runs, and their checkpoints."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from sqlmodel import Session, col, or_, select

from studio.db.tables import Model, Run
from studio.errors import ConflictError, InvalidError, NotFoundError, StudioError
from studio.protocols.chat_endpoints import NAME_PATTERN, ChatEndpoint
from studio.protocols.run_dir import RunDir
from studio.services.chat import chat_models
from studio.services.chat.chat_models import ChatModel
from studio.services.models import models, remote_code_trust
from studio.services.models.served_models import ServedModel
from studio.services.runs import runs
from studio.weights import model_facts
from studio.weights.architectures import KIND_DESCRIPTIONS

Kind = Literal["model", "base", "run", "endpoint"]

MAX_LISTED = 20
"""How many models of each kind a search lists."""

_REFERENCE = re.compile(
    r"(?P<kind>model|base|run):(?P<id>[1-9]\d{0,17})(?::(?P<step>0|[1-9]\d{0,11}))?"
    rf"|endpoint:(?P<name>{NAME_PATTERN})"
)


@dataclass(frozen=True, slots=True)
class ModelReference:
    """What a column of the playground refers to, as `model:1`, `base:7`, `run:7` or `run:7:20`.

    `base:7` is the base model of run 7, in the format that the run trained on, and `endpoint:large`
    an endpoint of that name.
    """

    kind: Kind
    id: int
    """0 for an endpoint."""
    step: int | None = None
    name: str = ""
    """Of an endpoint."""

    def __str__(self) -> str:
        if self.name:
            return f"{self.kind}:{self.name}"
        return f"{self.kind}:{self.id}" + ("" if self.step is None else f":{self.step}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelChoice:
    """A model to choose, or why it cannot answer."""

    reference: ModelReference
    name: str
    """Of the base model, of the run, or of an endpoint's model."""
    host: str = ""
    """Where an endpoint is."""
    reason: str = ""
    """Why it cannot answer; empty if it can."""
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunChoices:
    """The models of a run that can answer, its result first, or why it has none."""

    run: Run
    choices: list[ModelChoice]
    reason: str = ""


def parse_reference(text: str) -> ModelReference:
    """Return what a text such as `run:7:20` refers to.

    Raises:
        InvalidError: It refers to nothing.

    """
    match = _REFERENCE.fullmatch(text)
    if match is None or (match["step"] and match["kind"] != "run"):
        raise InvalidError(
            f"{text[:80]!r} names no model.",
            hint="Write model:1 for a base model, run:7 for the model of a run, "
            "run:7:20 for its checkpoint of step 20, or endpoint:large for an endpoint.",
            param="model",
        )
    if match["name"]:
        return ModelReference("endpoint", 0, name=match["name"])
    kinds: dict[str, Kind] = {"model": "model", "base": "base", "run": "run"}
    step = int(match["step"]) if match["step"] else None
    return ModelReference(kinds[match["kind"]], int(match["id"]), step)


def get_model(db: Session, runs_folder: Path, reference: ModelReference) -> ChatModel:
    """Return the model of this studio that a column refers to.

    Raises:
        ConflictError: It cannot answer.
        NotFoundError: It does not exist, or its files are gone.

    """
    if reference.kind != "model":
        run = runs.get(db, reference.id)
        side: chat_models.Side = "base" if reference.kind == "base" else "run"
        return chat_models.get_chat_model(db, run, runs_folder, side, reference.step)
    model = models.get(db, reference.id)
    if problem := _find_problem(model):
        raise ConflictError(problem[0], hint=problem[1])
    code = remote_code_trust.allowed_code_hash(model)
    served = ServedModel(model=model.location, code=code)
    return ChatModel(name=model.name, served=served, template="model", base=model.name)


def describe_endpoint(endpoint: ChatEndpoint) -> ModelChoice:
    """Return how an endpoint is shown."""
    reference = ModelReference("endpoint", 0, name=endpoint.name)
    return ModelChoice(reference=reference, name=endpoint.model, host=endpoint.host)


def find_run(db: Session, reference: ModelReference) -> Run | None:
    """Return the run that a column refers to, or the run that trained its model."""
    if reference.kind == "endpoint":
        return None
    if reference.kind != "model":
        return db.get(Run, reference.id)
    model = db.get(Model, reference.id)
    return db.get(Run, model.run_id) if model and model.run_id else None


def describe(db: Session, runs_folder: Path, reference: ModelReference) -> ModelChoice:
    """Return how a column is shown, also if its model cannot answer."""
    try:
        model = get_model(db, runs_folder, reference)
    except StudioError as error:
        name = _known_name(db, reference)
        return ModelChoice(reference=reference, name=name, reason=error.message, hint=error.hint)
    run = db.get(Run, model.run_id) if model.run_id else None
    return ModelChoice(reference=reference, name=run.name if run else model.base)


def with_reason(choice: ModelChoice, error: StudioError) -> ModelChoice:
    """Return a choice that cannot answer because of an error."""
    return replace(choice, reason=error.message, hint=error.hint)


def _known_name(db: Session, reference: ModelReference) -> str:
    if reference.kind == "model":
        model = db.get(Model, reference.id)
        return model.name if model else ""
    run = db.get(Run, reference.id)
    if run is None:
        return ""
    return run.recipe.base_model if reference.kind == "base" else run.name


def list_base_models(db: Session, search: str = "") -> list[ModelChoice]:
    """Return base models with a name, those that can answer first; runs have their own list."""
    query = select(Model).where(
        col(Model.kind) != "run", col(Model.name).icontains(search, autoescape=True)
    )
    found = db.exec(query.order_by(col(Model.id).desc()).limit(MAX_LISTED)).all()
    return sorted(map(_base_choice, found), key=lambda choice: bool(choice.reason))


def list_runs(db: Session, runs_folder: Path, search: str = "") -> list[RunChoices]:
    """Return runs by name or number, newest first, those with a model that can answer first."""
    query = select(Run).where(col(Run.deleted_at).is_(None), col(Run.archived_at).is_(None))
    number = re.fullmatch(r"#?(\d{1,18})", search.strip())
    is_named = col(Run.name).icontains(search, autoescape=True)
    query = query.where(or_(is_named, col(Run.id) == int(number[1])) if number else is_named)
    found = db.exec(query.order_by(col(Run.id).desc()).limit(MAX_LISTED)).all()
    listed = [_run_choices(run, RunDir(runs_folder / str(run.id))) for run in found]
    return sorted(listed, key=lambda row: not row.choices)


def suggest(db: Session, runs_folder: Path) -> list[ModelReference]:
    """Return what to begin with: the newest run that can answer beside its base model.

    Without a run, it is the newest base model that can answer; without that, nothing.
    """
    row = next(iter(list_runs(db, runs_folder)), None)
    if row is not None and row.choices:
        return [ModelReference("base", row.run.id or 0), row.choices[0].reference]
    return [choice.reference for choice in list_base_models(db)[:1] if not choice.reason]


def _base_choice(model: Model) -> ModelChoice:
    reason, hint = _find_problem(model) or ("", "")
    reference = ModelReference("model", model.id or 0)
    return ModelChoice(reference=reference, name=model.name, reason=reason, hint=hint)


def _run_choices(run: Run, folder: RunDir) -> RunChoices:
    trained = chat_models.list_models(run, folder)
    choices = list(_trained_choices(run, trained))
    reason = "" if choices else chat_models.missing_reason(run, folder)[0]
    return RunChoices(run=run, choices=choices, reason=reason)


def _trained_choices(run: Run, trained: chat_models.TrainedModels) -> Iterator[ModelChoice]:
    steps: list[int | None] = [*trained.steps]
    for step in [None, *steps] if trained.has_result else steps:
        reference = ModelReference("run", run.id or 0, step)
        yield ModelChoice(reference=reference, name=run.name)


def _find_problem(model: Model) -> tuple[str, str] | None:
    """Return why a base model cannot answer, and what to do; None if it can."""
    if not models.is_local(model):
        return (
            f"The files of {model.name} are not on this machine.",
            "Add the model again on the Models page.",
        )
    try:
        kind = model_facts.from_config(Path(model.location)).kind
        remote_code_trust.require_consent(model)
    except (InvalidError, NotFoundError) as error:
        return error.message, error.hint
    if kind in ("causal", "image_text", None):
        return None
    return KIND_DESCRIPTIONS[kind], "Choose a model that continues texts."
