"""Clients of the tokenizer service (previews of rows) and the inference service (answers).

An answer is streamed without blocking a thread.
"""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass

from pydantic import ValidationError

from studio.errors import InvalidError, StudioError, TooLargeError, UnavailableError
from studio.processes import unix_sockets
from studio.protocols import inference_service, tokenizer_service
from studio.protocols.inference_service import GenerationChunk, GenerationEnd, GenerationRequest
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
"""Covers loading libraries and a tokenizer, and requests queued before this one."""

_CONCURRENT_REQUESTS = threading.BoundedSemaphore(8)
"""Most threads that may wait for the service; the others keep serving pages."""

_ERROR_CLASSES: dict[str, type[StudioError]] = {
    "no_free_slot": UnavailableError,
    "out_of_memory": UnavailableError,
    "too_large": TooLargeError,
    "unavailable": UnavailableError,
}
"""Exception classes by failure code; any other code means invalid input."""


def tokenize_row(settings: Settings, request: TokenizerRequest) -> TokenPreview:
    """Return a row as tokens, as a model sees it.

    Raises:
        InvalidError: The row, the model or its chat template is invalid.
        UnavailableError: The service is not available.

    """
    response = send_request(settings, request)
    assert response.tokens is not None  # noqa: S101 -- the kind requested
    return response.tokens


def render_templates(settings: Settings, request: TokenizerRequest) -> TemplatePreviews:
    """Return a row formatted with each chat template.

    Raises:
        InvalidError: The row or the model is invalid.
        UnavailableError: The service is not available.

    """
    response = send_request(settings, request)
    assert response.templates is not None  # noqa: S101 -- the kind requested
    return response.templates


def render_prompt(settings: Settings, request: TokenizerRequest) -> PromptTokens:
    """Return the prompt tokens of a conversation or a text.

    Raises:
        InvalidError: The chat template cannot format it, or there is none.
        UnavailableError: The service is not available.

    """
    response = send_request(settings, request)
    assert response.prompt is not None  # noqa: S101 -- the kind requested
    return response.prompt


def send_request(settings: Settings, request: TokenizerRequest) -> TokenizerResponse:
    """Send one request to the tokenizer service.

    Raises:
        StudioError: As the service reports, or because it is not available.

    """
    if not _CONCURRENT_REQUESTS.acquire(blocking=False):
        raise UnavailableError("Too many token previews at once.", hint="Try again in a moment.")
    try:
        response = _exchange(settings, request)
    finally:
        _CONCURRENT_REQUESTS.release()
    if response.failure is not None:
        raise to_error(response.failure)
    return response


def _exchange(settings: Settings, request: TokenizerRequest) -> TokenizerResponse:
    payload = request.model_dump_json().encode()
    if len(payload) > tokenizer_service.MAX_REQUEST_BYTES:
        raise TooLargeError("This row is too long to show.")
    try:
        path = tokenizer_service.socket_path(settings.home)
        connection = unix_sockets.connect(path, TIMEOUT_SECONDS)
    except OSError as error:
        raise UnavailableError(
            "No worker is running, so tokens cannot be shown.",
            hint="Start one: studio worker",
        ) from error
    try:
        with connection:
            connection.sendall(payload)
            connection.shutdown(socket.SHUT_WR)
            return TokenizerResponse.model_validate_json(
                unix_sockets.receive_all(connection, tokenizer_service.MAX_RESPONSE_BYTES)
            )
    except (OSError, ValidationError) as error:
        raise UnavailableError(
            "The tokens of this row could not be computed.",
            hint="Try again. See desk.log in the studio's home folder for details.",
        ) from error


def to_error(failure: ServiceFailure) -> StudioError:
    """Return the error for a failure that this service or the inference service reports."""
    error = _ERROR_CLASSES.get(failure.code, InvalidError)(failure.message, hint=failure.hint)
    error.code = failure.code
    return error


FIRST_WORD_TIMEOUT_SECONDS = 600.0
"""Covers loading a model and the answers queued before this one. OpenAI clients wait as long."""


@dataclass(frozen=True, slots=True)
class ResponseStream:
    """A streamed answer. Closing it early stops the generation."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def chunks(self) -> AsyncIterator[str | GenerationEnd]:
        """Yield pieces of text, then how the answer ended.

        Raises:
            StudioError: The stream broke off.

        """
        while True:
            chunk = await self.read()
            if chunk.end is not None:
                yield chunk.end
                return
            yield chunk.text

    async def read(self) -> GenerationChunk:
        """Return the next line of the response.

        Raises:
            StudioError: The stream broke off, or the service reports a failure.

        """
        try:
            chunk = GenerationChunk.model_validate_json(await self.reader.readline())
        except (OSError, ValidationError) as error:
            raise UnavailableError(
                "The model stopped in the middle of its answer.",
                hint="Try again. See speaker.log in the studio's home folder for details.",
            ) from error
        if chunk.failure is not None:
            raise to_error(chunk.failure)
        return chunk

    async def read_in_time(self) -> GenerationChunk:
        """Return the next line of the response, which may take as long as loading a model.

        Raises:
            StudioError: As `read`, or the model was silent for too long.

        """
        try:
            async with asyncio.timeout(FIRST_WORD_TIMEOUT_SECONDS):
                return await self.read()
        except TimeoutError as error:
            raise UnavailableError(
                "The model took too long to start answering.", hint="Try again later."
            ) from error

    async def close(self) -> None:
        self.writer.close()
        with suppress(OSError):
            await self.writer.wait_closed()


async def send_generation_request(settings: Settings, request: GenerationRequest) -> ResponseStream:
    """Send a request to the inference service; the model may have to be loaded first.

    Raises:
        TooLargeError: The request is longer than the service reads.
        UnavailableError: No worker is running.

    """
    payload = request.model_dump_json().encode()
    if len(payload) > inference_service.MAX_REQUEST_BYTES:
        raise TooLargeError("This request is too long for any model.", param="messages")
    stream = await _connect(settings)
    stream.writer.write(payload)
    stream.writer.write_eof()
    return stream


async def open_stream(settings: Settings, request: GenerationRequest) -> ResponseStream:
    """Return a stream on which a model has started to answer.

    Raises:
        InvalidError: The request or the model is invalid.
        UnavailableError: No worker answers, or there is no memory or slot for the model.

    """
    stream = await send_generation_request(settings, request)
    try:
        while not (await stream.read_in_time()).started:
            pass
    except BaseException:
        await stream.close()
        raise
    return stream


async def _connect(settings: Settings) -> ResponseStream:
    try:
        with unix_sockets.socket_address(inference_service.socket_path(settings.home)) as where:
            reader, writer = await asyncio.open_unix_connection(
                where, limit=inference_service.MAX_LINE_BYTES
            )
    except OSError as error:
        raise UnavailableError(
            "No worker is running, so no model can answer.", hint="Start one: studio worker"
        ) from error
    return ResponseStream(reader, writer)
