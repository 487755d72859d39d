"""What a run's model makes of a text, if it rewrites or scores it instead of holding a chat."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from sqlmodel import Session

from studio.db.states import RunStatus
from studio.db.tables import Run
from studio.errors import ConflictError, InvalidError, UnavailableError
from studio.intake.row_formats.tagged_words import OUTSIDE, find_entities, split_words
from studio.protocols.inference_service import GenerationEnd, GenerationRequest, WordTag
from studio.protocols.run_dir import RunDir
from studio.protocols.tokenizer_service import RequestKind, TokenizerRequest
from studio.recipe.base import Outputs
from studio.services.chat import neighbours, slot_wait
from studio.services.chat.neighbours import Neighbour, SearchedTexts
from studio.services.models import rerankers, served_models, service_clients
from studio.services.models.served_models import ServedModel
from studio.settings import Settings
from studio.weights import encoders, model_facts

_KINDS: Mapping[Outputs, RequestKind] = {
    "score": "reading",
    "steps": "steps",
    "entities": "words",
}
"""How the service reads what a method's models do not just continue."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a model makes of a text."""

    answer: str
    """What it writes; empty if it gives scores."""
    end: GenerationEnd
    outputs: Outputs
    """What its method makes it give."""
    neighbours: Sequence[Neighbour] = ()
    """The most similar validation texts, if it gives vectors."""


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
        row=_to_row(row, kind),
        max_length=length,
        source_language=languages.source if languages else "",
        target_language=languages.target if languages else "",
        chat_template="model" if run.recipe.has_chat_template and encoder is None else "none",
        is_encoder=encoder is not None,
    )
    prompt = service_clients.render_prompt(settings, reading)
    prompt = prompt.model_copy(update={"ids": prompt.ids[:length]})
    options = GenerationRequest(
        model="",
        ids=[],
        stops=[],
        gives_scores=not run.recipe.writes_text,
        places=prompt.places,
        gives_tags=kind == "words",
        most=length if run.recipe.writes_text else None,
        temperature=0.0,
        num_beams=run.recipe.search.num_beams,
        length_penalty=run.recipe.search.length_penalty,
    )
    return model.fill_in(options, f"run {run.id}", prompt)


def _to_row(row: Mapping[str, Any], kind: RequestKind) -> dict[str, Any]:
    """Return a conversation as the row that a method of this kind reads."""
    if kind == "steps":
        return split_steps(row)
    return split_text(row) if kind == "words" else dict(row)


def split_text(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a conversation as a text whose words have no tags yet.

    Raises:
        InvalidError: it has no words.

    """
    text = read_text(row["messages"])
    words = [text[start:end] for start, end in split_words(text)]
    if not words:
        raise InvalidError("A text is required.", hint="Enter a text with some words.")
    return {"text": text, "words": words, "tags": [OUTSIDE] * len(words)}


def read_text(messages: Sequence[Mapping[str, Any]]) -> str:
    """Return the text in which the entities of a conversation are found."""
    return "\n".join(str(turn["content"]) for turn in messages)


@dataclass(frozen=True, slots=True)
class FoundEntity:
    """An entity that a model found in a text."""

    start: int
    """The index of its first character."""
    end: int
    """The index after its last character."""
    label: str
    score: float
    """The mean of the probabilities of its words' tags."""


def list_entities(text: str, tags: Sequence[WordTag]) -> list[FoundEntity]:
    """Return the entities that a model found in a text by the tags that it gave its words."""
    places = split_words(text)
    return [
        FoundEntity(
            places[start][0],
            places[end - 1][1],
            label,
            mean(one.likely for one in tags[start:end]),
        )
        for start, end, label in find_entities([one.tag for one in tags])
    ]


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
        while (end := (chunk := await stream.read_in_time()).end) is None:
            answer += chunk.text
    finally:
        await stream.close()
    return Prediction(answer, end, outputs)


async def find_similar(
    settings: Settings, among: SearchedTexts, row: Mapping[str, Any]
) -> Prediction:
    """Return the validation texts that are most similar to the text of a conversation.

    Raises:
        InvalidError: It has no tokens.
        UnavailableError: There is no worker, no slot or no memory for a model.

    """
    text = read_text(row["messages"])
    search = await asyncio.to_thread(neighbours.prepare, settings, among, text)
    found, tokens = await neighbours.find(settings, search)
    return Prediction("", GenerationEnd(reason="stop", tokens=tokens), "vector", found)


async def compare(settings: Settings, run: Run, row: Mapping[str, Any]) -> Prediction:
    """Return how well the last answer of a conversation matches what comes before it.

    Raises:
        InvalidError: One of them is missing.
        UnavailableError: There is no worker, no slot or no memory for the model.

    """
    *before, last = row["messages"]
    if not before or last["role"] != "assistant":
        raise InvalidError(
            "A query and a text are required.",
            hint="The text is the last answer; the query is what comes before it.",
        )
    reranker = rerankers.for_result(run, RunDir(settings.runs / str(run.id)))
    asked = (settings, reranker, f"run {run.id}", read_text(before), [str(last["content"])])
    request = await asyncio.to_thread(rerankers.build_request, *asked)
    found = await rerankers.score(settings, request)
    scores = {"relevance": found.scores[0]}
    end = GenerationEnd(reason="stop", tokens=found.tokens, scores=scores)
    return Prediction("", end, "relevance")
