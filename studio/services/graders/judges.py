"""The models that graders can ask: those to choose from, and how each is loaded."""

from collections.abc import Iterator
from dataclasses import dataclass

from sqlmodel import Session

from studio.errors import StudioError
from studio.graders.schema import Grader
from studio.protocols import grader_judges
from studio.protocols.grader_judges import ENDPOINT, EndpointJudges, LocalJudge
from studio.protocols.inference_service import GenerationRequest
from studio.protocols.judging import ModelJudge
from studio.protocols.tokenizer_service import PromptTokens
from studio.services.models import reward_models
from studio.services.openai import model_names
from studio.services.playground import endpoints
from studio.settings import Settings


@dataclass(frozen=True, slots=True)
class ModelOption:
    value: str
    """As a grader names it."""
    title: str


def list_chat_models(db: Session) -> list[ModelOption]:
    """Return the models of the studio that can answer."""
    return [ModelOption(model.name, model.name) for model in model_names.list_models(db)]


def list_judges(db: Session, settings: Settings) -> list[ModelOption]:
    """Return the models that can judge: those of endpoints first. A broken list has none."""
    try:
        listed = endpoints.list_endpoints(db, settings)
    except StudioError:
        listed = []
    outside = [
        ModelOption(f"{ENDPOINT}{one.name}", f"{one.name}: {one.model} ({one.host})")
        for one in listed
    ]
    return outside + list_chat_models(db)


def list_reward_models(db: Session) -> list[ModelOption]:
    """Return the reward models that runs have trained, newest first."""
    runs = reward_models.list_runs(db)
    return [ModelOption(f"run:{run.id}", f"{run.name} #{run.id}") for run in runs]


def endpoint_judges(db: Session, settings: Settings) -> EndpointJudges:
    """Return the judges behind endpoints, with their keys.

    Raises:
        InvalidError: the setting is malformed.
        UnavailableError: it is stored and cannot be decrypted.

    """
    return EndpointJudges(
        endpoints.list_endpoints(db, settings), allow_internal=settings.allow_internal_addresses
    )


def check_models(db: Session, settings: Settings, grader: Grader) -> None:
    """Check that the models a grader asks exist.

    Raises:
        StudioError: one does not, or cannot judge; `param` is its path.

    """
    for _name, _judge in _find_all(db, settings, grader):
        pass


def local_judges(db: Session, settings: Settings, grader: Grader) -> dict[str, LocalJudge]:
    """Return how the models of the studio that a grader asks are loaded.

    Raises:
        StudioError: one does not exist, or cannot judge; `param` is its path.

    """
    return {name: judge for name, judge in _find_all(db, settings, grader) if judge is not None}


def _find_all(
    db: Session, settings: Settings, grader: Grader
) -> Iterator[tuple[str, LocalJudge | None]]:
    """Yield the models that a grader asks; None for those of endpoints."""
    for path, one in grader_judges.list_model_graders(grader):
        try:
            grader_judges.require_reward_type(one, path)
            yield one.model, _find(db, settings, one.model)
        except StudioError as error:
            error.param = f"{path}.model"
            raise


def _find(db: Session, settings: Settings, model: str) -> LocalJudge | None:
    if grader_judges.asks_endpoint(model):
        endpoint_judges(db, settings).require(model)
        return None
    if (run_id := grader_judges.reward_run(model)) is not None:
        return reward_models.make_judge(db, settings.runs, run_id)
    served = model_names.resolve_served_model(db, settings.runs, model)
    blank = GenerationRequest(model="", ids=[], stops=[])
    return ModelJudge(model=served.fill_in(blank, model, PromptTokens(ids=[], stops=[])))
