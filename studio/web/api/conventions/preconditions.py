"""Conditional writes: ETags, and changes rejected when their If-Match is outdated."""

import hashlib
import json
from typing import Annotated, Any

from fastapi import Depends, Header, Response

from studio.errors import StaleError

IfMatch = Annotated[str | None, Header(max_length=1000)]


class Etag:
    """The ETag of a resource: a hash of its editable fields, without those that change alone."""

    def __init__(self, response: Response) -> None:
        self._response = response

    def set_header(self, *facts: Any) -> None:  # noqa: ANN401 -- any field values
        self._response.headers["ETag"] = _hash_facts(facts)


class EtagCondition(Etag):
    """The ETag of a resource that is about to change."""

    def __init__(self, response: Response, if_match: IfMatch = None) -> None:
        """Take the ETag from when the resource was read; without one, no check is made."""
        super().__init__(response)
        self._if_match = if_match

    def check(self, *facts: Any) -> None:  # noqa: ANN401 -- any field values
        """Reject a change to a resource that has changed since it was read.

        Raises:
            StaleError: The resource has changed.

        """
        if self._if_match is None or self._if_match.strip() == "*":
            return
        # A proxy that compresses the response may have made the ETag weak.
        etags = {etag.strip().removeprefix("W/") for etag in self._if_match.split(",")}
        if _hash_facts(facts) not in etags:
            raise StaleError(
                "Someone else has changed this since you read it.",
                hint="Read it again, then apply your change to the current version.",
                param="If-Match",
            )


def _hash_facts(facts: tuple[Any, ...]) -> str:
    text = json.dumps(facts, default=str, sort_keys=True)
    return f'"{hashlib.sha256(text.encode()).hexdigest()[:20]}"'


EtagResponse = Annotated[Etag, Depends(Etag)]
EtagPrecondition = Annotated[EtagCondition, Depends(EtagCondition)]
