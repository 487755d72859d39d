"""Ask the desk: how a model will see a row, and what chat templates make of it."""

import socket
import threading

from pydantic import ValidationError

from studio.errors import InvalidError, StudioError, TooLargeError, UnavailableError
from studio.processes import unix_sockets
from studio.protocols import tokenizer_service
from studio.protocols.tokenizer_service import (
    PromptTokens,
    ServiceFailure,
    TemplatePreviews,
    TokenizerRequest,
    TokenizerResponse,
    TokenPreview,
)
from studio.settings import Settings

TIMEOUT_SECONDS = 15.0
"""A first answer waits for libraries and a tokenizer to load, and others may be in front."""

_CONCURRENT_REQUESTS = threading.BoundedSemaphore(8)
"""How many threads may wait for it: the others answer other pages meanwhile."""

ERROR_CLASSES: dict[str, type[StudioError]] = {
    "too_large": TooLargeError,
    "unavailable": UnavailableError,
}
"""Of failures by their code; all others mean that the input is at fault."""


def tokenize_row(settings: Settings, asked: TokenizerRequest) -> TokenPreview:
    """Return a row as a model will see it.

    Raises:
        InvalidError: it cannot be: the row, the model or its chat template is at fault.
        UnavailableError: there is nobody to ask now.

    """
    answer = send_request(settings, asked)
    assert answer.tokens is not None  # noqa: S101 -- what was asked for
    return answer.tokens


def render_templates(settings: Settings, asked: TokenizerRequest) -> TemplatePreviews:
    """Return what each chat template makes of a row.

    Raises:
        InvalidError: the row or the model is at fault.
        UnavailableError: there is nobody to ask now.

    """
    answer = send_request(settings, asked)
    assert answer.templates is not None  # noqa: S101 -- what was asked for
    return answer.templates


def render_prompt(settings: Settings, asked: TokenizerRequest) -> PromptTokens:
    """Return the tokens that a model is to go on with: those of a conversation, or of a text.

    Raises:
        InvalidError: the chat template cannot write it, or there is none.
        UnavailableError: there is nobody to ask now.

    """
    answer = send_request(settings, asked)
    assert answer.prompt is not None  # noqa: S101 -- what was asked for
    return answer.prompt


def send_request(settings: Settings, asked: TokenizerRequest) -> TokenizerResponse:
    """Ask one question of the desk.

    Raises:
        StudioError: as it says itself, or because nobody answers.

    """
    if not _CONCURRENT_REQUESTS.acquire(blocking=False):
        raise UnavailableError("Many rows are being looked at now.", hint="Try again in a moment.")
    try:
        answer = _exchange(settings, asked)
    finally:
        _CONCURRENT_REQUESTS.release()
    if answer.failure is not None:
        raise _to_error(answer.failure)
    return answer


def _exchange(settings: Settings, asked: TokenizerRequest) -> TokenizerResponse:
    said = asked.model_dump_json().encode()
    if len(said) > tokenizer_service.MAX_REQUEST_BYTES:
        raise TooLargeError("This row is too long to be shown.")
    try:
        line = tokenizer_service.connect(settings.home, TIMEOUT_SECONDS)
    except OSError as error:
        raise UnavailableError(
            "There is no worker to ask how a model sees this row.",
            hint="Start one: studio worker.",
        ) from error
    try:
        with line:
            line.sendall(said)
            line.shutdown(socket.SHUT_WR)
            return TokenizerResponse.model_validate_json(
                unix_sockets.receive_all(line, tokenizer_service.MAX_RESPONSE_BYTES)
            )
    except (OSError, ValidationError) as error:
        raise UnavailableError(
            "How a model sees this row could not be told.",
            hint="Try again; desk.log in the studio's folder says more.",
        ) from error


def _to_error(failure: ServiceFailure) -> StudioError:
    error = ERROR_CLASSES.get(failure.code, InvalidError)(failure.message, hint=failure.hint)
    error.code = failure.code
    return error
