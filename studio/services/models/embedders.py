"""Ask models for the vectors of texts."""

import sys
from array import array
from base64 import b64decode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from studio.db.tables import Run
from studio.errors import InvalidError
from studio.protocols.inference_service import GenerationRequest
from studio.protocols.run_dir import RunDir
from studio.protocols.tokenizer_service import PromptTokens, TokenizerRequest
from studio.recipe.vectors import Vectors
from studio.services.models import served_models, service_clients
from studio.services.models.served_models import ServedModel
from studio.settings import Settings
from studio.weights import encoders, model_facts

TextKind = Literal["query", "document"]

_REQUEST_CHARS = 400_000
"""The most characters that the tokenizer service is sent at a time: it has two seconds for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedder:
    """A model that gives vectors."""

    served: ServedModel
    vectors: Vectors
    max_length: int
    """Tokens of a text that it reads; the rest is cut off, as in training."""

    def write(self, text: str, kind: TextKind | None) -> str:
        """Return a text with the prompt that the model was trained with."""
        prompts = {"query": self.vectors.query_prompt, "document": self.vectors.passage_prompt}
        return prompts[kind] + text if kind else text


@dataclass(frozen=True, slots=True)
class Embedded:
    """The vectors of texts, and how many tokens these had."""

    vectors: list[bytes]
    """Each float32 numbers, the low byte first, of length 1."""
    tokens: int


def for_result(run: Run, folder: RunDir, weights: str = "") -> Embedder:
    """Return the model of a run whose model gives vectors, or a checkpoint of it.

    Raises:
        NotFoundError: Its folder has been deleted.

    """
    return _of_run(run, served_models.for_result(run, folder, weights))


def for_base(run: Run, folder: RunDir) -> Embedder:
    """Return the base model of such a run, which gives vectors in the same way.

    Raises:
        NotFoundError: Its files are gone.

    """
    return _of_run(run, served_models.for_base(run, folder))


def read_vector(content: bytes) -> "array[float]":
    """Return float32 numbers, of which the low byte comes first."""
    vector = array("f", content)
    if sys.byteorder == "big":
        vector.byteswap()
    return vector


def _of_run(run: Run, served: ServedModel) -> Embedder:
    assert run.recipe.vectors is not None  # noqa: S101 -- the caller has checked it
    vectors, length = run.recipe.vectors, max_length(run, served)
    return Embedder(served=served, vectors=vectors, max_length=length)


def max_length(run: Run, served: ServedModel) -> int:
    """Return how many tokens of a text a model reads: as in training, if it has positions."""
    config = model_facts.read_config(Path(served.model) / "config.json")
    length = run.recipe.data.max_length
    return min(length, encoders.max_tokens(config) or length)


def build_request(
    settings: Settings, embedder: Embedder, name: str, texts: Sequence[str | Sequence[int]]
) -> GenerationRequest:
    """Return a request for the vectors of texts, or of the tokens of texts.

    Raises:
        InvalidError: A text has no tokens.
        UnavailableError: The tokenizer service is not available.

    """
    written = [text for text in texts if isinstance(text, str)]
    tokenised = iter(_tokenise(settings, embedder, written))
    ids = [
        next(tokenised) if isinstance(text, str) else list(text)[: embedder.max_length]
        for text in texts
    ]
    for place, one in enumerate(ids):
        if not one:
            raise InvalidError(
                f"Text {place + 1} has no tokens.", hint="Leave it out.", param="input"
            )
    options = GenerationRequest(
        model="", ids=[], stops=[], texts=ids, pooling=embedder.vectors.pooling
    )
    return embedder.served.fill_in(options, name, PromptTokens(ids=[], stops=[]))


def _tokenise(settings: Settings, embedder: Embedder, texts: Sequence[str]) -> list[list[int]]:
    found: list[list[int]] = []
    for part in split_texts(texts):
        reading = TokenizerRequest(
            kind="texts",
            model=embedder.served.folder,
            texts=part,
            max_length=embedder.max_length,
            chat_template="none",
        )
        found += service_clients.render_prompt(settings, reading).texts
    return found


def split_texts(texts: Sequence[str], beside: int = 0) -> Iterator[list[str]]:
    """Yield texts in parts that the tokenizer service has time for.

    It also reads `beside` characters with each.
    """
    part: list[str] = []
    chars = 0
    for text in texts:
        if part and chars + len(text) + beside > _REQUEST_CHARS:
            yield part
            part, chars = [], 0
        part.append(text)
        chars += len(text) + beside
    if part:
        yield part


async def embed(settings: Settings, request: GenerationRequest) -> Embedded:
    """Return the vectors of the texts of a request, after loading the model if necessary.

    Raises:
        UnavailableError: There is no worker, no slot or no memory for the model.

    """
    stream = await service_clients.send_generation_request(settings, request)
    vectors: list[bytes] = []
    try:
        while (end := (chunk := await stream.read_in_time()).end) is None:
            vectors += map(b64decode, chunk.values)
    finally:
        await stream.close()
    return Embedded(vectors, end.tokens)
