"""The texts that are most similar to a given one, by a run's model and by its base model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import mul
from typing import Any

from sqlmodel import Session

from studio.db.tables import Run
from studio.errors import ConflictError, NotFoundError
from studio.protocols.inference_service import GenerationRequest
from studio.protocols.run_dir import RunDir
from studio.services.chat import suggested_prompts
from studio.services.datasets import versions
from studio.services.models import embedders
from studio.services.models.embedders import Embedder
from studio.settings import Settings

SHOWN = 10
"""How many texts are returned."""
_ROWS_READ = 200
"""How many validation rows are searched: each search reads all of them."""


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A text, and how similar it is to the one that was searched for: the cosine."""

    text: str
    similarity: float
    before: float | None
    """By the base model; None if that has been deleted."""


@dataclass(frozen=True, slots=True)
class SearchedTexts:
    """The validation texts of a run, and the models that search among them."""

    run: str
    """The run's name for a model, for display."""
    texts: Sequence[str]
    after: Embedder
    before: Embedder | None
    """The base model; None if it has been deleted."""


@dataclass(frozen=True, slots=True)
class Search:
    """What the models are asked: a text first, then those among which it searches."""

    texts: Sequence[str]
    after: GenerationRequest
    before: GenerationRequest | None


def load(db: Session, settings: Settings, run: Run) -> SearchedTexts:
    """Return the validation texts of a run that gives vectors.

    Raises:
        ConflictError: They have been deleted.
        NotFoundError: The files of the run have been deleted.

    """
    version, folder = versions.find_for_run(db, run), RunDir(settings.runs / str(run.id))
    rows = (
        suggested_prompts.read_held_out(run, version, settings.datasets, _ROWS_READ)
        if version
        else []
    )
    texts = list(dict.fromkeys(filter(None, (_second_text(row.row) for row in rows))))
    if not texts:
        raise ConflictError(
            "The validation rows of this run have been deleted, so there is nothing to search.",
            hint="Use POST /v1/embeddings to compare your own texts.",
        )
    try:
        base: Embedder | None = embedders.for_base(run, folder)
    except NotFoundError:
        base = None
    return SearchedTexts(f"run {run.id}", texts, embedders.for_result(run, folder), base)


def prepare(settings: Settings, among: SearchedTexts, text: str) -> Search:
    """Return a search for the texts that are similar to a text.

    Raises:
        InvalidError: The text has no tokens.
        UnavailableError: The tokenizer service is not available.

    """
    return Search(
        among.texts,
        _request(settings, among.after, among.run, text, among.texts),
        _request(settings, among.before, among.run, text, among.texts) if among.before else None,
    )


def _request(
    settings: Settings, embedder: Embedder, name: str, text: str, texts: Sequence[str]
) -> GenerationRequest:
    written = [embedder.write(text, "query"), *(embedder.write(one, "document") for one in texts)]
    return embedders.build_request(settings, embedder, name, written)


def _second_text(row: Mapping[str, Any]) -> str:
    """Return the text of a row that others search for; empty if it has none."""
    if "anchor" in row:
        return str(row["positive"])
    prompt = suggested_prompts.to_prompt(row)
    return prompt.expected if prompt else ""


async def find(settings: Settings, search: Search) -> tuple[list[Neighbour], int]:
    """Return the most similar texts, and how many tokens the run's model read.

    Raises:
        UnavailableError: There is no worker, no slot or no memory for a model.

    """
    # The run's model stays loaded for the next search.
    before = await embedders.embed(settings, search.before) if search.before else None
    after = await embedders.embed(settings, search.after)
    old = _similarities(before.vectors) if before else [None] * len(search.texts)
    found = map(Neighbour, search.texts, _similarities(after.vectors), old)
    return sorted(found, key=lambda one: -one.similarity)[:SHOWN], after.tokens


def _similarities(vectors: Sequence[bytes]) -> list[float]:
    """Return the cosines of all other vectors with the first."""
    first, *others = (embedders.read_vector(vector) for vector in vectors)
    return [sum(map(mul, first, other)) for other in others]
