"""Ask the speaker: have a model answer, and hear its answer bit by bit. No thread waits for it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass

from pydantic import ValidationError

from studio.errors import InvalidError, StudioError, TooLargeError, UnavailableError
from studio.processes import unix_sockets
from studio.protocols import inference_service
from studio.protocols.inference_service import GenerationChunk, GenerationEnd, GenerationRequest
from studio.protocols.tokenizer_service import ServiceFailure
from studio.services.models.tokenizer_client import ERROR_CLASSES
from studio.settings import Settings

FIRST_WORD_TIMEOUT_SECONDS = 600.0
"""How long a model may take to load, and others' answers before it: as long as clients wait."""

_CLASSES: dict[str, type[StudioError]] = ERROR_CLASSES | {
    "no_free_slot": UnavailableError,
    "out_of_memory": UnavailableError,
}


@dataclass(frozen=True, slots=True)
class ResponseStream:
    """A model that has begun to answer. To close it before the end makes it stop."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def chunks(self) -> AsyncIterator[str | GenerationEnd]:
        """Yield what it says, and last of all how it ended.

        Raises:
            StudioError: it broke off.

        """
        while True:
            heard = await _read_message(self.reader)
            if heard.end is not None:
                yield heard.end
                return
            yield heard.text

    async def close(self) -> None:
        self.writer.close()
        with suppress(OSError):
            await self.writer.wait_closed()


async def open_stream(settings: Settings, asked: GenerationRequest) -> ResponseStream:
    """Return a line on which a model has begun to answer.

    Raises:
        InvalidError: what is asked is at fault, or the model.
        UnavailableError: there is nobody to ask now, or no room to answer.

    """
    wish = asked.model_dump_json().encode()
    if len(wish) > inference_service.MAX_REQUEST_BYTES:
        raise TooLargeError("This is too long for any model.", param="messages")
    line = await _connect(settings)
    try:
        line.writer.write(wish)
        line.writer.write_eof()
        async with asyncio.timeout(FIRST_WORD_TIMEOUT_SECONDS):
            await _read_message(line.reader)
    except TimeoutError as error:
        await line.close()
        raise UnavailableError(
            "The model took too long to begin.", hint="Try again later."
        ) from error
    except BaseException:
        await line.close()
        raise
    return line


async def _connect(settings: Settings) -> ResponseStream:
    try:
        with unix_sockets.socket_address(inference_service.socket_path(settings.home)) as where:
            reader, writer = await asyncio.open_unix_connection(
                where, limit=inference_service.MAX_LINE_BYTES
            )
    except OSError as error:
        raise UnavailableError(
            "There is no worker to have a model answer.", hint="Start one: studio worker."
        ) from error
    return ResponseStream(reader, writer)


async def _read_message(reader: asyncio.StreamReader) -> GenerationChunk:
    try:
        heard = GenerationChunk.model_validate_json(await reader.readline())
    except (OSError, ValidationError) as error:
        raise UnavailableError(
            "The model broke off.",
            hint="Try again; speaker.log in the studio's folder says more.",
        ) from error
    if heard.failure is not None:
        raise _to_error(heard.failure)
    return heard


def _to_error(failure: ServiceFailure) -> StudioError:
    error = _CLASSES.get(failure.code, InvalidError)(failure.message, hint=failure.hint)
    error.code = failure.code
    return error
