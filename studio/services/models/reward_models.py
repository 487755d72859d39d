"""Reward models that runs have trained: those to choose from, and how each is loaded."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sqlmodel import Session, col, select

from studio.db.states import FINAL, RunStatus
from studio.db.tables import Run
from studio.errors import ConflictError, InvalidError, NotFoundError, StudioError
from studio.methods import AnyRecipe
from studio.protocols import grader_judges
from studio.protocols.inference_service import GenerationRequest
from studio.protocols.judging import RewardJudge
from studio.protocols.run_dir import RunDir
from studio.protocols.tokenizer_service import PromptTokens
from studio.services.models import served_models
from studio.weights import encoders, model_facts, model_files, model_metadata, safetensors_headers

METHOD = "reward"
"""The method that trains reward models."""

ADAPTER_WEIGHTS = "adapter_model.safetensors"

_HINT = "Choose a run that trained a reward model."


@dataclass(frozen=True, slots=True)
class RewardModelProblem:
    """Why a recipe cannot ask one of its reward models."""

    error: StudioError
    param: str
    """The dotted name of the setting with the grader."""


def list_runs(db: Session) -> Iterator[Run]:
    """Yield the runs that have trained a reward model, newest first."""
    query = select(Run).where(Run.status == RunStatus.SUCCEEDED, col(Run.deleted_at).is_(None))
    runs = db.exec(query.order_by(col(Run.id).desc()))
    return (run for run in runs if run.recipe.method == METHOD)


def get_run(db: Session, run_id: int) -> Run:
    """Return the run that trained a reward model.

    Raises:
        InvalidError: it trained no reward model, or has none yet.
        NotFoundError: there is no such run.

    """
    run = db.get(Run, run_id)
    if run is None or run.deleted_at:
        raise NotFoundError(f"There is no run {run_id}.", hint=_HINT)
    if run.recipe.method != METHOD:
        raise InvalidError(
            f"Run {run_id} trained no reward model.",
            hint="Choose a run that learned from comparisons with the goal of scoring answers.",
        )
    if run.status is not RunStatus.SUCCEEDED:
        raise InvalidError(
            f"The reward model of run {run_id} is not ready.", hint="Wait until it has succeeded."
        )
    return run


def make_judge(db: Session, runs: Path, run_id: int) -> RewardJudge:
    """Return how the reward model of a run is loaded; `runs` is the folder of all runs.

    Raises:
        InvalidError: it trained no reward model, or has none yet, or its files are incomplete.
        NotFoundError: there is no such run, or its files are gone.

    """
    run, folder = get_run(db, run_id), RunDir(runs / str(run_id))
    served = served_models.for_result(run, folder)
    _require_files(run, folder.artifacts, Path(served.model))
    blank = GenerationRequest(model="", ids=[], stops=[], gives_scores=True)
    scoring = served.fill_in(blank, f"run {run.id}", PromptTokens(ids=[], stops=[]))
    return RewardJudge(model=scoring, max_length=run.recipe.data.max_length)


def _require_files(run: Run, artifacts: Path, base: Path) -> None:
    if not _has_weights(artifacts):
        raise NotFoundError(
            f"The weights of the reward model of run {run.id} are gone.", hint=_HINT
        )
    if base.is_absolute() and not _has_weights(base):
        raise NotFoundError(
            f"The base model of run {run.id} is gone, and its adapter cannot score without it: "
            f"{run.recipe.base_model}.",
            hint="Add the model again under the same name, or choose another reward model.",
        )
    if not (artifacts / model_files.TOKENIZER_CONFIG_FILE).is_file():
        raise InvalidError(f"The reward model of run {run.id} has no tokenizer.", hint=_HINT)
    if _reads_turns(run, artifacts) and not model_metadata.read(artifacts).template_file:
        raise InvalidError(f"The reward model of run {run.id} has no chat template.", hint=_HINT)


def _has_weights(folder: Path) -> bool:
    """Whether a folder has the weights of a model, or of an adapter."""
    has_adapter = (folder / ADAPTER_WEIGHTS).is_file()
    return has_adapter or bool(safetensors_headers.weight_files(folder))


def _reads_turns(run: Run, artifacts: Path) -> bool:
    """Whether a reward model reads conversations as the turns of a chat, as encoders do not."""
    config = model_facts.read_config(artifacts / model_files.CONFIG_FILE)
    return run.recipe.has_chat_template and encoders.find(config) is None


def judges_for(db: Session, runs: Path, recipe: AnyRecipe) -> dict[str, RewardJudge]:
    """Return how the reward models are loaded that a recipe's graders ask, by their names.

    Raises:
        StudioError: one cannot be asked.

    """
    numbers = {name: grader_judges.reward_run(name) for name in recipe.reward_models}
    return {
        name: make_judge(db, runs, number) for name, number in numbers.items() if number is not None
    }


def require_unused(db: Session, run: Run) -> None:
    """Refuse to delete a reward model that a run still asks.

    Raises:
        ConflictError: a run that has not ended asks it.

    """
    name = f"run:{run.id}"
    for other in db.exec(select(Run).where(col(Run.status).not_in(FINAL))):
        if name in other.recipe.reward_models:
            raise ConflictError(
                f"Run {other.id} asks the reward model of run {run.id}.",
                hint="Wait until that run has ended, or cancel it first.",
            )


def find_problems(
    db: Session, runs: Path | None, recipe: AnyRecipe
) -> Iterator[RewardModelProblem]:
    """Yield why a recipe's graders cannot ask the reward models that they name.

    `runs` is the folder of all runs; None if their files cannot be seen here.
    """
    for name, param in recipe.reward_models.items():
        number = grader_judges.reward_run(name)
        assert number is not None  # noqa: S101 -- so reward models are named
        try:
            if runs is None:
                get_run(db, number)
            else:
                make_judge(db, runs, number)
        except StudioError as error:
            yield RewardModelProblem(error, param)
