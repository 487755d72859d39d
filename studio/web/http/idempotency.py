"""Idempotency-Key: store the response to the first request, and replay it for repeats.

The response is stored in the transaction of the change it reports: both are committed, or neither.
A few routes commit themselves; their response is stored right afterwards, and what they create has
a unique name that cannot be used twice.
"""

import hashlib
import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from fastapi import Request, Response
from starlette.concurrency import run_in_threadpool

from studio.db.accounts import IdempotencyKey
from studio.db.session import read_session, unit_of_work
from studio.services.accounts import idempotency_keys
from studio.web.auth.identity import require_identity

if TYPE_CHECKING:
    from sqlmodel import Session

Handler = Callable[[Request], Awaitable[Response]]

REPLAY_HEADER = "Idempotent-Replay"
_STORED_HEADERS = ("content-type", "location", "etag")


class IdempotentReplay(Exception):  # noqa: N818 -- not an error: it carries the stored response past the route
    """The request was answered before."""

    def __init__(self, receipt: IdempotencyKey) -> None:
        self.stored = receipt


async def respond_once(request: Request, handle: Handler) -> Response:
    """Handle a request that creates something; for a known key, return the stored response."""
    if idempotency_keys.HEADER not in request.headers:
        return await handle(request)
    try:
        if not _is_form(request):
            await raise_if_answered(request, await request.body())
        response = await handle(request)
    except IdempotentReplay as replay:
        headers = replay.stored.headers | {REPLAY_HEADER: "true"}
        return Response(replay.stored.body, replay.stored.status, headers)
    await run_in_threadpool(_store_response, request, response)
    return response


async def raise_if_answered(request: Request, sent: bytes) -> None:
    """Check whether this request was answered before. Forms are checked once fully received.

    Raises:
        IdempotentReplay: It was answered before.

    """
    key = request.headers.get(idempotency_keys.HEADER)
    if key is None:
        return
    sha256 = hashlib.sha256(
        f"{request.scope['path']}\n".encode() + _canonical_json(sent)
    ).hexdigest()
    stored_key = idempotency_keys.scoped_key(key, require_identity(request).account_id)
    request.state.receipt = IdempotencyKey(key=stored_key, sha256=sha256, status=0, body=b"")
    answer = await run_in_threadpool(_find_stored, request)
    if answer is not None:
        raise IdempotentReplay(answer)


def _find_stored(request: Request) -> IdempotencyKey | None:
    with read_session(request.app.state.engine) as db:
        return idempotency_keys.find_answer(
            db, request.state.receipt.key, request.state.receipt.sha256
        )


def _store_response(request: Request, response: Response) -> None:
    receipt: IdempotencyKey = request.state.receipt
    receipt.status, receipt.body = response.status_code, bytes(response.body)
    headers = {name: response.headers.get(name) for name in _STORED_HEADERS}
    receipt.headers = {name: value for name, value in headers.items() if value is not None}
    session: Session | None = getattr(request.state, "unit_of_work", None)
    if session is not None:
        idempotency_keys.store_answer(session, receipt)
        return
    with unit_of_work(request.app.state.engine) as db:
        idempotency_keys.store_answer(db, receipt)


def _canonical_json(body: bytes) -> bytes:
    """Return JSON in canonical form, so that equivalent bodies compare equal."""
    try:
        parsed: Any = json.loads(body)
    except ValueError:
        return body
    return json.dumps(parsed, sort_keys=True).encode()


def _is_form(request: Request) -> bool:
    return request.headers.get("content-type", "").startswith("multipart/")
