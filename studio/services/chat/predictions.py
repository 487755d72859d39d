"""What a run's model makes of a text, if it rewrites or scores it instead of holding a chat."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlmodel import Session

from studio.db.states import RunStatus
from studio.db.tables import Run
from studio.errors import ConflictError, InvalidError, UnavailableError
from studio.protocols.inference_service import GenerationEnd, GenerationRequest
from studio.protocols.run_dir import RunDir
from studio.protocols.tokenizer_service import RequestKind, TokenizerRequest
from studio.recipe.base import Outputs
from studio.services.chat import slot_wait
from studio.services.models import served_models, service_clients
from studio.services.models.served_models import ServedModel
from studio.services.models.service_clients import FIRST_WORD_TIMEOUT_SECONDS
from studio.settings import Settings
from studio.weights import encoders, model_facts

_KINDS: Mapping[Outputs, RequestKind] = {"score": "reading", "steps": "steps"}
"""How the service reads what a method's models do not just continue."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a model makes of a text."""

    answer: str
    """What it writes; empty if it gives scores."""
    end: GenerationEnd
    outputs: Outputs
    """What its method makes it give."""


def get_scorer(db: Session, run: Run, runs: Path) -> ServedModel:
    """Return the model of a run that rewrites or scores texts.

    Raises:
        ConflictError: the run has no such model.
        NotFoundError: its files are gone.
        UnavailableError: no worker is running.

    """
    if run.recipe.outputs == "text":
        raise ConflictError(
            "The model of this run holds conversations.", hint="Chat with it instead."
        )
    if run.deleted_at or run.status is not RunStatus.SUCCEEDED:
        raise ConflictError(
            "This run has no model yet.", hint="You can try it once the run has succeeded."
        )
    if wait := slot_wait.find_worker_wait(db):
        raise UnavailableError(wait.message, hint="Start one with `studio worker`.")
    return served_models.for_result(run, RunDir(runs / str(run.id)))


def build_request(
    settings: Settings, model: ServedModel, run: Run, row: Mapping[str, Any]
) -> GenerationRequest:
    """Tokenise a row as in training: all of it to be scored, or a prompt whose answer is next.

    Raises:
        InvalidError: the row is no conversation, or the chat template cannot format it.
        UnavailableError: the tokenizer service is not available.

    """
    config = model_facts.read_config(Path(model.folder) / "config.json")
    encoder, length = encoders.find(config), run.recipe.data.max_length
    length = min(length, encoders.max_tokens(config) or length)
    kind, languages = _KINDS.get(run.recipe.outputs, "prompt"), run.recipe.languages
    reading = TokenizerRequest(
        kind=kind,
        model=model.folder,
        row=split_steps(row) if kind == "steps" else dict(row),
        max_length=length,
        source_language=languages.source if languages else "",
        target_language=languages.target if languages else "",
        chat_template="model" if run.recipe.has_chat_template and encoder is None else "none",
    )
    prompt = service_clients.render_prompt(settings, reading)
    prompt = prompt.model_copy(update={"ids": prompt.ids[:length]})
    options = GenerationRequest(
        model="",
        ids=[],
        stops=[],
        gives_scores=not run.recipe.writes_text,
        places=prompt.places,
        most=length if run.recipe.writes_text else None,
        temperature=0.0,
        num_beams=run.recipe.search.num_beams,
        length_penalty=run.recipe.search.length_penalty,
    )
    return model.fill_in(options, f"run {run.id}", prompt)


def split_steps(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a conversation as a prompt with the steps of its last answer, one a line.

    Raises:
        InvalidError: it has no answer.

    """
    turns: list[dict[str, Any]] = list(row["messages"])
    answer = turns.pop() if turns and turns[-1]["role"] == "assistant" else {"content": ""}
    steps = [line.strip() for line in str(answer["content"]).splitlines() if line.strip()]
    if not steps or not turns:
        raise InvalidError(
            "A prompt and its answer are required.", hint="Write each step on a line of its own."
        )
    # Nothing is trained on: what is right is the question.
    return {"messages": turns, "steps": steps, "correct": [True] * len(steps)}


async def predict(settings: Settings, request: GenerationRequest, outputs: Outputs) -> Prediction:
    """Return what a model makes of a text, after loading the model if necessary.

    Raises:
        UnavailableError: there is no worker, no slot or no memory for the model.

    """
    stream = await service_clients.send_generation_request(settings, request)
    answer = ""
    try:
        async with asyncio.timeout(FIRST_WORD_TIMEOUT_SECONDS):
            while (end := (chunk := await stream.read()).end) is None:
                answer += chunk.text
    except TimeoutError as error:
        raise UnavailableError(
            "The model took too long to start answering.", hint="Try again later."
        ) from error
    finally:
        await stream.close()
    return Prediction(answer, end, outputs)
