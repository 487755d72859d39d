"""A judge behind an address that speaks OpenAI's API."""

import json
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from typing import Any

from studio.errors import InvalidError, UnavailableError
from studio.network import safe_http
from studio.protocols import chat_endpoints
from studio.protocols.judging import EndpointJudge, Pair, PairResult
from studio.runner.judges.both_orders import MAX_TOKENS, ask_both_orders

PARALLEL = 4
"""Requests at a time."""
SECONDS = 120.0
"""How long one reply may take."""
RETRIES = (1.0, 4.0, 16.0)
"""Seconds before each further try, after a failure that may pass."""
MAX_REPLY_BYTES = 2**20


@dataclass(slots=True)
class Endpoint:
    """A judge behind an address that speaks OpenAI's API."""

    target: EndpointJudge
    key: str
    allow_internal: bool
    retries: Sequence[float] = RETRIES
    _options: dict[str, Any] = field(
        default_factory=lambda: {"temperature": 0, "max_tokens": MAX_TOKENS}
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
        """Return the reply to a question; try again what may pass."""
        for pause in self.retries:
            try:
                return self._ask_once(question)
            except UnavailableError:
                time.sleep(pause)
        return self._ask_once(question)

    def _ask_once(self, question: str) -> str:
        messages = [{"role": "user", "content": question}]
        payload = {"model": self.target.model, "messages": messages}
        while True:
            options = self._options  # Other threads may change them meanwhile.
            status, content = self._post(payload | options)
            adapted = chat_endpoints.adapt(options, content) if status == 400 else None  # noqa: PLR2004 -- a bad request
            if adapted is None:
                break
            self._options = adapted.options
        if status == 429 or status >= 500:  # noqa: PLR2004 -- too many requests, or its own trouble
            raise UnavailableError(f"The judge answered with status {status}.", hint=_LATER)
        if status in (400, 413, 422):  # It may be this question alone: no verdict on it.
            return f"Refused with status {status}: {chat_endpoints.error_message(content)}"
        if status != 200:  # noqa: PLR2004 -- refused
            reason = chat_endpoints.error_message(content)
            raise InvalidError(
                f"The judge refused the request with status {status}: {reason}",
                hint="Check STUDIO_JUDGE_URL, STUDIO_JUDGE_MODEL and the judge's key.",
            )
        return _reply_text(content)

    def _post(self, payload: dict[str, Any]) -> tuple[int, bytes]:
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        opened = safe_http.open_url(
            f"{self.target.url.rstrip('/')}/chat/completions",
            headers,
            seconds=SECONDS,
            allow_internal=self.allow_internal,
            body=json.dumps(payload).encode(),
        )
        with opened as response:
            content = b""
            for piece in response.iter_bytes():
                content += piece
                if len(content) > MAX_REPLY_BYTES:
                    raise InvalidError("The judge's reply is too long.", hint=_LATER)
            return response.status, content


_LATER = "Try again later, or choose another judge."


def _reply_text(content: bytes) -> str:
    """Return what the model wrote.

    Raises:
        InvalidError: the response is none of OpenAI's API.

    """
    try:
        text = json.loads(content)["choices"][0]["message"]["content"]
    except (ValueError, LookupError, TypeError) as error:
        raise InvalidError(
            "The judge's response is not that of a chat completion.",
            hint="The address should end in /v1 and speak OpenAI's API.",
        ) from error
    return text if isinstance(text, str) else ""
