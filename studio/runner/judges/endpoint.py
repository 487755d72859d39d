"""A judge behind an address that speaks OpenAI's API."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field

from pydantic import SecretStr

from studio.protocols.chat_endpoints import JUDGE, ChatEndpoint
from studio.protocols.endpoint_client import (
    PARALLEL,
    RETRIES,
    EndpointClient,
    RefusedQuestionError,
)
from studio.protocols.judging import EndpointJudge, Pair, PairResult
from studio.runner.judges.both_orders import MAX_TOKENS, ask_both_orders


@dataclass(slots=True)
class Endpoint:
    """A judge behind an address that speaks OpenAI's API."""

    target: EndpointJudge
    key: str
    allow_internal: bool
    retries: Sequence[float] = RETRIES
    _client: EndpointClient = field(init=False)

    def __post_init__(self) -> None:
        target = self.target
        self._client = EndpointClient(
            ChatEndpoint(name=JUDGE, url=target.url, model=target.model, key=SecretStr(self.key)),
            allow_internal=self.allow_internal,
            hint="Check STUDIO_JUDGE_URL, STUDIO_JUDGE_MODEL and the judge's key.",
            retries=self.retries,
        )

    def judge(self, pairs: Sequence[Pair]) -> Iterator[PairResult]:
        """Yield the result of each pair as it arrives.

        Raises:
            InvalidError: the endpoint refuses the key, the model or the request.
            UnavailableError: it cannot be reached.

        """
        with ThreadPoolExecutor(PARALLEL) as threads:
            asked = [threads.submit(ask_both_orders, pair, self.ask) for pair in pairs]
            try:
                for answered in as_completed(asked):
                    yield answered.result()
            finally:
                for one in asked:
                    one.cancel()

    def ask(self, question: str) -> str:
        """Return the reply to a question, or that it was refused, which is no verdict on it."""
        messages = [{"role": "user", "content": question}]
        try:
            return self._client.ask(messages, {"temperature": 0, "max_tokens": MAX_TOKENS}).text
        except RefusedQuestionError as refusal:
            return refusal.message
