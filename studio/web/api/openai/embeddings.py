"""Embeddings of the OpenAI-compatible API: the vectors of texts."""

import math
import sys
from array import array
from base64 import b64encode
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from annotated_types import Ge
from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool

from studio.db.session import read_session
from studio.errors import InvalidError
from studio.protocols.inference_service import GenerationRequest
from studio.services.models import embedders
from studio.services.models.embedders import Embedded, Embedder, TextKind
from studio.services.openai import model_names
from studio.web.api.openai.disconnects import until_disconnect
from studio.web.api.openai.schemas import Body, Out, check_fields

router = APIRouter(prefix="/v1", tags=["openai"])

MAX_TEXTS, MAX_CHARS = 2048, 1_000_000
"""As many texts as OpenAI reads at a time. Longer texts are cut off, as in training."""
_IGNORED = frozenset({"user"})

Tokens = list[Annotated[int, Ge(0)]]


class EmbeddingsIn(Body):
    model: str
    input: str | Tokens | list[str] | list[Tokens]
    """A text or several, or their tokens. What is beyond the model's maximum length is not read."""
    encoding_format: Literal["float", "base64"] = "float"
    """base64: float32 numbers, the low byte first."""
    dimensions: Annotated[int, Ge(1)] | None = None
    """Keep only the first numbers of each vector, scaled to length 1. For models that were trained
    with shorter vectors (Matryoshka)."""
    input_type: Literal["query", "document"] | None = None
    """Which of the prompts that the model was trained with is written before each text; null for
    none. OpenAI's API lacks it."""

    def read_texts(self) -> list[str] | list[list[int]]:
        """Return the texts, or their tokens.

        Raises:
            InvalidError: There are none, too many, or one of them is empty or too long.

        """
        texts: Any = self.input
        if isinstance(texts, str) or (texts and all(isinstance(one, int) for one in texts)):
            texts = [texts]
        if not 0 < len(texts) <= MAX_TEXTS:
            raise InvalidError(
                f"Between 1 and {MAX_TEXTS:,} texts are read at a time, not {len(texts):,}.",
                param="input",
            )
        for place, text in enumerate(texts, 1):
            if not 0 < len(text) <= MAX_CHARS:
                problem = f"longer than {MAX_CHARS:,}" if text else "empty"
                raise InvalidError(f"Text {place} of the input is {problem}.", param="input")
        found: list[str] | list[list[int]] = texts
        return found


class EmbeddingOut(Out):
    object: Literal["embedding"] = "embedding"
    index: int
    """The place of its text, from 0."""
    embedding: list[float] | str
    """A vector of length 1; in base64 if that was asked for."""


class EmbeddingUsage(Out):
    prompt_tokens: int
    total_tokens: int


class EmbeddingsOut(Out):
    object: Literal["list"] = "list"
    data: list[EmbeddingOut]
    model: str
    usage: EmbeddingUsage


@router.post("/embeddings")
async def embed(sent: EmbeddingsIn, request: Request) -> EmbeddingsOut:
    """Return the vectors of texts by a model that was trained to give them."""
    check_fields(sent, _IGNORED, {})
    asked = await run_in_threadpool(_build_request, request, sent)
    settings = request.app.state.settings
    found = await until_disconnect(request, embedders.embed(settings, asked))
    return await run_in_threadpool(_make_response, sent, found)


def _build_request(request: Request, sent: EmbeddingsIn) -> GenerationRequest:
    settings = request.app.state.settings
    with read_session(request.app.state.engine) as db:
        embedder = model_names.resolve_embedder(db, settings.runs, sent.model)
    texts = [_write(embedder, text, sent.input_type) for text in sent.read_texts()]
    return embedders.build_request(settings, embedder, sent.model, texts)


def _write(
    embedder: Embedder, text: str | Sequence[int], kind: TextKind | None
) -> str | Sequence[int]:
    """Return a text with its prompt; tokens are what they are."""
    return embedder.write(text, kind) if isinstance(text, str) else text


def _make_response(sent: EmbeddingsIn, found: Embedded) -> EmbeddingsOut:
    vectors = [shorten(embedders.read_vector(vector), sent.dimensions) for vector in found.vectors]
    return EmbeddingsOut(
        data=[
            EmbeddingOut(
                index=place,
                embedding=_to_base64(vector)
                if sent.encoding_format == "base64"
                else vector.tolist(),
            )
            for place, vector in enumerate(vectors)
        ],
        model=sent.model,
        usage=EmbeddingUsage(prompt_tokens=found.tokens, total_tokens=found.tokens),
    )


def shorten(vector: "array[float]", size: int | None) -> "array[float]":
    """Return the first numbers of a vector, scaled to length 1.

    Raises:
        InvalidError: It has fewer.

    """
    if size is None or size == len(vector):
        return vector
    if size > len(vector):
        raise InvalidError(
            f"This model gives vectors of {len(vector):,} numbers.",
            hint="Ask for as many or fewer.",
            param="dimensions",
        )
    kept = vector[:size]
    length = math.hypot(*kept) or 1.0
    return array("f", (number / length for number in kept))


def _to_base64(vector: "array[float]") -> str:
    little = array("f", vector)
    if sys.byteorder == "big":
        little.byteswap()
    return b64encode(little.tobytes()).decode()
