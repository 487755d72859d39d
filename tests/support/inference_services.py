"""An inference service without torch: it answers what a test tells it to, on the real socket."""

import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from studio.processes import unix_sockets
from studio.protocols import inference_service
from studio.protocols.inference_service import GenerationChunk, GenerationEnd, GenerationRequest
from studio.protocols.tokenizer_service import ServiceFailure
from studio.settings import Settings

Answer = Callable[[GenerationRequest], Iterable[GenerationChunk]]

STARTED = GenerationChunk(started=True)
LOADING = GenerationChunk(loading=True)
NO_SLOT = GenerationChunk(
    failure=ServiceFailure(code="no_free_slot", message="No slot is free.", hint="Wait.")
)


def words(*texts: str, is_cut: bool = False) -> list[GenerationChunk]:
    """Return the lines of an answer that arrives in pieces."""
    end = GenerationEnd(
        reason="length" if is_cut else "stop", tokens=len(texts), computed_in="float32"
    )
    pieces = [GenerationChunk(text=text) for text in texts]
    return [STARTED, *pieces, GenerationChunk(end=end)]


def failed(code: str, message: str, hint: str = "") -> list[GenerationChunk]:
    return [GenerationChunk(failure=ServiceFailure(code=code, message=message, hint=hint))]


@dataclass(slots=True)
class FakeInferenceService:
    """Answers one client after the other, and keeps what each asked."""

    answer: Answer
    requests: list[GenerationRequest] = field(default_factory=list)

    def serve(self, listener: socket.socket) -> None:
        with suppress(OSError):  # The listener is closed at the end of the test.
            while True:
                connection, _ = listener.accept()
                with connection, suppress(OSError):  # The client has gone.
                    self._serve_one(connection)

    def _serve_one(self, connection: socket.socket) -> None:
        sent = unix_sockets.receive_all(connection, inference_service.MAX_REQUEST_BYTES)
        if not sent:
            return
        request = GenerationRequest.model_validate_json(sent)
        self.requests.append(request)
        for chunk in self.answer(request):
            connection.sendall(chunk.to_line())


@contextmanager
def run_inference_service(settings: Settings, answer: Answer) -> Iterator[FakeInferenceService]:
    """Listen where clients of the inference service connect."""
    service = FakeInferenceService(answer)
    listener = socket.socket(socket.AF_UNIX)
    with unix_sockets.socket_address(inference_service.socket_path(settings.home)) as address:
        listener.bind(address)
    listener.listen()
    thread = threading.Thread(target=service.serve, args=(listener,))
    thread.start()
    try:
        yield service
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()
