"""Conditional writes: a change says what it was made from, and is refused if that is past."""

import hashlib
import json
from typing import Annotated, Any

from fastapi import Depends, Header, Response

from studio.errors import StaleError

IfMatch = Annotated[str | None, Header(max_length=1000)]


class Etag:
    """The mark of what may be changed of a thing; facts that change by themselves are not in it."""

    def __init__(self, response: Response) -> None:
        self._response = response

    def set_header(self, *facts: Any) -> None:  # noqa: ANN401 -- whatever a thing says of itself
        self._response.headers["ETag"] = _hash_facts(facts)


class EtagCondition(Etag):
    """The same for a change."""

    def __init__(self, response: Response, if_match: IfMatch = None) -> None:
        """`if_match` is the ETag that the thing had when it was read; without it, all goes."""
        super().__init__(response)
        self._if_match = if_match

    def check(self, *facts: Any) -> None:  # noqa: ANN401 -- whatever a thing says of itself
        """Refuse to change what is no longer as it was read.

        Raises:
            StaleError: somebody else was faster.

        """
        if self._if_match is None or self._if_match.strip() == "*":
            return
        # A proxy that packs an answer may have made the mark a weak one.
        known = {one.strip().removeprefix("W/") for one in self._if_match.split(",")}
        if _hash_facts(facts) not in known:
            raise StaleError(
                "This was changed by somebody else meanwhile.",
                hint="Read it again, and change what it says now.",
                param="If-Match",
            )


def _hash_facts(facts: tuple[Any, ...]) -> str:
    text = json.dumps(facts, default=str, sort_keys=True)
    return f'"{hashlib.sha256(text.encode()).hexdigest()[:20]}"'


EtagResponse = Annotated[Etag, Depends(Etag)]
EtagPrecondition = Annotated[EtagCondition, Depends(EtagCondition)]
