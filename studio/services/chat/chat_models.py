"""The two models of a chat: the base model of a run, and its result or one of its checkpoints."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sqlmodel import Session

from studio.db.states import RunStatus
from studio.db.tables import Run
from studio.errors import ConflictError, NotFoundError, StudioError
from studio.protocols.run_dir import RunDir
from studio.protocols.tokenizer_service import TemplateSource
from studio.services.models import served_models
from studio.services.models.served_models import ServedModel
from studio.services.openai import model_names
from studio.services.runs import artifacts

Side = Literal["base", "run"]
ApiMatch = Literal["same", "other", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatModel:
    """A model that answers in a chat."""

    name: str
    """Its name in the API."""
    served: ServedModel
    template: TemplateSource
    """The chat template that renders its prompts."""
    base: str
    """The name of the base model."""
    run_id: int | None = None
    """The run that trained it; None for a base model."""
    step: int | None = None
    """The step of its checkpoint; None for the result of a run and for a base model."""
    api: ApiMatch = "same"
    """What the API answers with by its name: this model, one that is loaded differently, or
    none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedModels:
    """The models of a run that can answer."""

    has_result: bool
    steps: list[int]
    """The steps of its checkpoints, newest first."""

    def choose_step(self, step: int | None) -> int | None:
        """Return the checkpoint to chat with; None is the result of the run.

        Raises:
            NotFoundError: That checkpoint was not kept.

        """
        if step is None:
            return None if self.has_result or not self.steps else self.steps[0]
        if step not in self.steps:
            raise NotFoundError(
                f"The checkpoint of step {step} was not kept.",
                hint="Choose another one: older checkpoints are deleted.",
            )
        return step


def list_models(run: Run, folder: RunDir) -> TrainedModels:
    """Return the models of a run that can answer; none of a run in the trash."""
    if run.deleted_at or run.recipe.outputs != "text":
        return TrainedModels(has_result=False, steps=[])
    return TrainedModels(
        has_result=run.status is RunStatus.SUCCEEDED and folder.artifacts.is_dir(),
        steps=[checkpoint.step for checkpoint in artifacts.list_checkpoints(folder.checkpoints)],
    )


def sees_images(run: Run, folder: RunDir) -> bool:
    """Whether the model of a run reads images as well as text."""
    try:
        spec = served_models.read_job_spec(run, folder)
        return ServedModel(model=spec.model).sees_images
    except StudioError:  # The first question says what is wrong.
        return False


def missing_reason(run: Run, folder: RunDir) -> tuple[str, str]:
    """Return why a run has no model that could answer, and what to do."""
    if run.recipe.outputs == "rewrite":
        message = "The model of this run rewrites texts, and holds no conversation."
        return message, "Try it on the page of the run."
    if run.recipe.outputs != "text":
        return "The model of this run reads text and writes none.", "Chat with another run."
    if run.deleted_at:
        return "This run is in the trash.", "Restore it to chat with its model."
    if run.status is RunStatus.SUCCEEDED and not folder.root.is_dir():
        return "The files of this run have been deleted.", "Run it again to get its model back."
    if run.status.is_final:
        return (
            "This run ended before it saved a model.",
            "Run it again, or chat with another run.",
        )
    return (
        "This run has no model yet.",
        "You can chat with its first checkpoint, or with the result when it is done.",
    )


def get_chat_model(db: Session, run: Run, runs: Path, side: Side, step: int | None) -> ChatModel:
    """Return a model of a chat.

    Raises:
        ConflictError: The run has no model that could answer.
        NotFoundError: Its files or that checkpoint are gone.

    """
    folder, template = RunDir(runs / str(run.id)), run.recipe.data.chat_template
    if side == "base":
        base = served_models.for_base(run, folder)
        name = run.recipe.base_model
        return ChatModel(
            name=name,
            served=base,
            template=template,
            base=name,
            api="same" if template == "model" and not base.rounded_to else "other",
        )
    trained = list_models(run, folder)
    if not trained.has_result and not trained.steps:
        message, hint = missing_reason(run, folder)
        raise ConflictError(message, hint=hint)
    chosen = trained.choose_step(step)
    name = model_names.tuned_model_name(run, model_names.job_suffix(db, run), chosen)
    weights = "" if chosen is None else str(folder.checkpoints / f"checkpoint-{chosen}")
    if trained.has_result:  # saved with its tokenizer, which has the chat template
        served, template = served_models.for_result(run, folder, weights), "model"
    else:
        served = served_models.for_checkpoint(run, folder, weights)
    return ChatModel(
        name=name,
        served=served,
        template=template,
        base=run.recipe.base_model,
        run_id=run.id,
        step=chosen,
        api="same" if trained.has_result else "none",
    )
