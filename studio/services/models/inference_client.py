"""Client of the inference service: stream a model's answer without blocking a thread."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass

from pydantic import ValidationError

from studio.errors import TooLargeError, UnavailableError
from studio.processes import unix_sockets
from studio.protocols import inference_service
from studio.protocols.inference_service import GenerationChunk, GenerationEnd, GenerationRequest
from studio.services.models.tokenizer_client import to_error
from studio.settings import Settings

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
            chunk = await _read_message(self.reader)
            if chunk.end is not None:
                yield chunk.end
                return
            yield chunk.text

    async def close(self) -> None:
        self.writer.close()
        with suppress(OSError):
            await self.writer.wait_closed()


async def open_stream(settings: Settings, request: GenerationRequest) -> ResponseStream:
    """Return a stream on which a model has started to answer.

    Raises:
        InvalidError: The request or the model is invalid.
        UnavailableError: No worker answers, or there is no memory or slot for the model.

    """
    payload = request.model_dump_json().encode()
    if len(payload) > inference_service.MAX_REQUEST_BYTES:
        raise TooLargeError("This request is too long for any model.", param="messages")
    stream = await _connect(settings)
    try:
        stream.writer.write(payload)
        stream.writer.write_eof()
        async with asyncio.timeout(FIRST_WORD_TIMEOUT_SECONDS):
            await _read_message(stream.reader)
    except TimeoutError as error:
        await stream.close()
        raise UnavailableError(
            "The model took too long to start answering.", hint="Try again later."
        ) from error
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


async def _read_message(reader: asyncio.StreamReader) -> GenerationChunk:
    try:
        chunk = GenerationChunk.model_validate_json(await reader.readline())
    except (OSError, ValidationError) as error:
        raise UnavailableError(
            "The model stopped in the middle of its answer.",
            hint="Try again. See speaker.log in the studio's home folder for details.",
        ) from error
    if chunk.failure is not None:
        raise to_error(chunk.failure)
    return chunk
