"""Reranking, as in the APIs of Jina and Cohere: how well texts match a query."""

from typing import Annotated, Any, Literal

from annotated_types import Ge, Len
from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool

from studio.db.session import read_session
from studio.errors import InvalidError
from studio.protocols.inference_service import GenerationRequest
from studio.services.models import rerankers
from studio.services.openai import model_names
from studio.web.api.openai.disconnects import until_disconnect
from studio.web.api.openai.schemas import Body, Out, check_fields

router = APIRouter(prefix="/v1", tags=["openai"])

MAX_TEXTS, MAX_CHARS = 1000, 1_000_000
"""Longer texts are cut off, as in training."""
_IGNORED = frozenset({"user"})


class Document(Body):
    text: str


class RerankIn(Body):
    model: str
    query: Annotated[str, Len(1, MAX_CHARS)]
    documents: list[str | Document]
    top_n: Annotated[int, Ge(1)] | None = None
    """How many results are returned; null for all."""
    return_documents: bool = False
    """Whether each result has its text."""

    def read_texts(self) -> list[str]:
        """Return the texts.

        Raises:
            InvalidError: There are none, too many, or one of them is empty or too long.

        """
        texts = [one if isinstance(one, str) else one.text for one in self.documents]
        if not 0 < len(texts) <= MAX_TEXTS:
            raise InvalidError(
                f"Between 1 and {MAX_TEXTS:,} texts are ranked at a time, not {len(texts):,}.",
                param="documents",
            )
        for place, text in enumerate(texts, 1):
            if not 0 < len(text) <= MAX_CHARS:
                problem = f"longer than {MAX_CHARS:,}" if text else "empty"
                raise InvalidError(f"Document {place} is {problem}.", param="documents")
        return texts


class RankedOut(Out):
    index: int
    """The place of its text in `documents`, from 0."""
    relevance_score: float
    """How well it matches, between 0 and 1."""
    document: dict[Literal["text"], str] | None = None


class RerankUsage(Out):
    total_tokens: int


class RerankOut(Out):
    object: Literal["list"] = "list"
    model: str
    results: list[RankedOut]
    """The best first."""
    usage: RerankUsage


@router.post("/rerank", response_model_exclude_none=True)
async def rerank(sent: RerankIn, request: Request) -> RerankOut:
    """Sort texts by how well they match a query, by a model that was trained to."""
    check_fields(sent, _IGNORED, {})
    texts = sent.read_texts()
    asked = await run_in_threadpool(_build_request, request, sent, texts)
    settings: Any = request.app.state.settings
    found = await until_disconnect(request, rerankers.score(settings, asked))
    best = sorted(enumerate(found.scores), key=lambda one: -one[1])[: sent.top_n]
    return RerankOut(
        model=sent.model,
        results=[
            RankedOut(
                index=place,
                relevance_score=score,
                document={"text": texts[place]} if sent.return_documents else None,
            )
            for place, score in best
        ],
        usage=RerankUsage(total_tokens=found.tokens),
    )


def _build_request(request: Request, sent: RerankIn, texts: list[str]) -> GenerationRequest:
    settings = request.app.state.settings
    with read_session(request.app.state.engine) as db:
        reranker = model_names.resolve_reranker(db, settings.runs, sent.model)
    return rerankers.build_request(settings, reranker, sent.model, sent.query, texts)
