"""The worker's side of the inference service: it occupies a slot, but yields it to waiting runs.

It starts when a client connects and a slot is free; otherwise the client is refused and may try
again. Once a run or other work waits for its slot, it finishes its current answer and exits.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta

from studio.protocols import inference_service
from studio.protocols.inference_service import GenerationChunk
from studio.protocols.tokenizer_service import ServiceFailure
from studio.services.models import loaded_model
from studio.services.queue.wait_reasons import Blocker
from studio.settings import Settings
from studio.worker.socket_services.loaded_model_status import LoadedModelStatus
from studio.worker.socket_services.socket_activation import SocketService


def no_slot_failure(blocker: Blocker | None) -> ServiceFailure:
    """Return the failure for a refused request: what occupies the slot, and for how long."""
    reason = blocker.reason if blocker else "waiting for a run to end"
    minutes = math.ceil((blocker.seconds or 0) / 60) if blocker else 0
    duration = f", in about {minutes} min" if minutes else ""
    return ServiceFailure(
        code="no_free_slot",
        message=f"No slot is free for inference: {reason}{duration}.",
        hint="Try again later, or start the studio with more slots: STUDIO_SLOTS.",
    )


@dataclass(slots=True)
class InferenceService:
    settings: Settings
    service: SocketService = field(init=False)
    status: LoadedModelStatus = field(init=False)

    def __post_init__(self) -> None:
        idle = str(self.settings.answer_idle_seconds)
        self.service = SocketService(
            inference_service.socket_path(self.settings.home), inference_service.MODULE, (idle,)
        )
        self.status = LoadedModelStatus(
            self.service, timedelta(seconds=self.settings.answer_idle_seconds)
        )

    @property
    def slots(self) -> int:
        """How many slots it occupies that a run could use."""
        return loaded_model.SLOTS_USED * self.service.is_running

    @property
    def gpus(self) -> set[int | None]:
        return {self.service.gpu} if self.service.is_running else set()

    def tick(
        self,
        free_slots: Callable[[], int],
        free_gpu: Callable[[], int | None],
        obstacle: Callable[[], Blocker | None],
    ) -> None:
        """Start the service for waiting clients, or refuse them; never blocks."""
        while self.service.has_clients():
            if free_slots() > 0:
                self.service.gpu = free_gpu()
                self.service.start()
            else:
                self.service.reject(GenerationChunk(failure=no_slot_failure(obstacle())).to_line())

    def release_slot(self) -> None:
        """Make the service exit after its current answer."""
        self.service.request_exit()

    def close(self) -> None:
        """Kill the service, even during an answer: the worker is exiting."""
        self.service.close()
