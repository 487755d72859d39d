"""Ask models how well texts match a query."""

from collections.abc import Sequence
from dataclasses import dataclass

from studio.db.tables import Run
from studio.protocols.inference_service import GenerationRequest
from studio.protocols.run_dir import RunDir
from studio.protocols.tokenizer_service import PromptTokens, TokenizerRequest
from studio.services.models import embedders, served_models, service_clients
from studio.services.models.served_models import ServedModel
from studio.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Reranker:
    """A model that says how well texts match a query."""

    served: ServedModel
    max_length: int
    """Tokens of a query with a text that it reads; the longer of both is cut, as in training."""


@dataclass(frozen=True, slots=True)
class Relevance:
    """How well each text matches, between 0 and 1, and how many tokens were read."""

    scores: list[float]
    tokens: int


def for_result(run: Run, folder: RunDir, weights: str = "") -> Reranker:
    """Return the model of a run that reranks, or a checkpoint of it.

    Raises:
        NotFoundError: Its folder has been deleted.

    """
    served = served_models.for_result(run, folder, weights)
    return Reranker(served=served, max_length=embedders.max_length(run, served))


def build_request(
    settings: Settings, reranker: Reranker, name: str, query: str, texts: Sequence[str]
) -> GenerationRequest:
    """Return a request for how well texts match a query.

    Raises:
        UnavailableError: The tokenizer service is not available.

    """
    ids: list[list[int]] = []
    types: list[list[int]] = []
    for part in embedders.split_texts(texts, len(query)):
        reading = TokenizerRequest(
            kind="texts",
            model=reranker.served.folder,
            first=query,
            texts=part,
            max_length=reranker.max_length,
            chat_template="none",
        )
        found = service_clients.render_prompt(settings, reading)
        ids, types = [*ids, *found.texts], [*types, *found.types]
    options = GenerationRequest(
        model="", ids=[], stops=[], texts=ids, types=types, gives_scores=True
    )
    return reranker.served.fill_in(options, name, PromptTokens(ids=[], stops=[]))


async def score(settings: Settings, request: GenerationRequest) -> Relevance:
    """Return how well the texts of a request match, after loading the model if necessary.

    Raises:
        UnavailableError: There is no worker, no slot or no memory for the model.

    """
    found = await embedders.embed(settings, request)
    return Relevance([embedders.read_vector(one)[0] for one in found.vectors], found.tokens)
