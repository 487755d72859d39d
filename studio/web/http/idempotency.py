"""Requests under an Idempotency-Key: the first is answered and kept, the others get that answer.

The answer is kept in the transaction of what it tells of: both are there, or neither. A few routes
commit by themselves; theirs is kept right afterwards, and what they make has a name of its own that
is not taken twice.
"""

import hashlib
import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from fastapi import Request, Response
from starlette.concurrency import run_in_threadpool

from studio.db.idempotency_keys import IdempotencyKey
from studio.db.session import read_session, unit_of_work
from studio.services.accounts import idempotency_keys
from studio.web.auth.identity import require_identity

if TYPE_CHECKING:
    from sqlmodel import Session

Handler = Callable[[Request], Awaitable[Response]]

REPLAY_HEADER = "Idempotent-Replay"
_STORED_HEADERS = ("content-type", "location", "etag")


class IdempotentReplay(Exception):  # noqa: N818 -- no error: it carries the answer past what would be done
    """The request was answered before."""

    def __init__(self, receipt: IdempotencyKey) -> None:
        self.stored = receipt


async def respond_once(request: Request, handle: Handler) -> Response:
    """Answer a request that makes something; under a known key, as it was answered before."""
    if idempotency_keys.HEADER not in request.headers:
        return await handle(request)
    try:
        if not _is_form(request):
            await raise_if_answered(request, await request.body())
        response = await handle(request)
    except IdempotentReplay as known:
        headers = known.stored.headers | {REPLAY_HEADER: "true"}
        return Response(known.stored.body, known.stored.status, headers)
    await run_in_threadpool(_store_response, request, response)
    return response


async def raise_if_answered(request: Request, sent: bytes) -> None:
    """Look whether this was sent before. Forms are looked for once they have come whole.

    Raises:
        Replayed: it was.

    """
    key = request.headers.get(idempotency_keys.HEADER)
    if key is None:
        return
    sha256 = hashlib.sha256(
        f"{request.scope['path']}\n".encode() + _canonical_json(sent)
    ).hexdigest()
    named = idempotency_keys.scoped_key(key, require_identity(request).account_id)
    request.state.receipt = IdempotencyKey(key=named, sha256=sha256, status=0, body=b"")
    known = await run_in_threadpool(_find_stored, request)
    if known is not None:
        raise IdempotentReplay(known)


def _find_stored(request: Request) -> IdempotencyKey | None:
    with read_session(request.app.state.engine) as db:
        return idempotency_keys.find_answer(
            db, request.state.receipt.key, request.state.receipt.sha256
        )


def _store_response(request: Request, response: Response) -> None:
    receipt: IdempotencyKey = request.state.receipt
    receipt.status, receipt.body = response.status_code, bytes(response.body)
    found = {name: response.headers.get(name) for name in _STORED_HEADERS}
    receipt.headers = {name: value for name, value in found.items() if value is not None}
    session: Session | None = getattr(request.state, "unit_of_work", None)
    if session is not None:
        idempotency_keys.store_answer(session, receipt)
        return
    with unit_of_work(request.app.state.engine) as db:
        idempotency_keys.store_answer(db, receipt)


def _canonical_json(sent: bytes) -> bytes:
    """Return JSON in one spelling: what means the same is the same."""
    try:
        meant: Any = json.loads(sent)
    except ValueError:
        return sent
    return json.dumps(meant, sort_keys=True).encode()


def _is_form(request: Request) -> bool:
    return request.headers.get("content-type", "").startswith("multipart/")
