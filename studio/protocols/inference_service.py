"""What is asked of the speaker, and what it says: lines of JSON over a unix socket.

The speaker is a process of the worker's side (`python -m studio.runner.inference.main`) that loads
models and has them answer. It is asked one thing on a line, and says its answer bit by bit:

    asked     {"model": "/…/starter", "ids": [1, 52, …], …}  and no more
    answered  {"begun": true}   {"text": "Go"}   {"text": "od."}   {"end": {"reason": "stop", …}}

or `{"failure": …}` in place of what is left. Whoever hangs up before the end stops it.
"""

import socket
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from studio.processes import unix_sockets
from studio.protocols.tokenizer_service import ServiceFailure
from studio.schemas.field_docs import FieldDocs

MODULE = "studio.runner.inference.main"

MAX_REQUEST_BYTES = 16 * 2**20
"""The longest request: a million tokens and little else."""

MAX_LINE_BYTES = 2**20
"""The longest line of an answer."""

FinishReason = Literal["stop", "length"]


class _Message(FieldDocs, BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class GenerationRequest(_Message):
    """What a model is to go on with, and how."""

    model: str
    """The folder of the model, or of the base that an adapter stands on; or a name on the hub."""
    code: str = ""
    """The hash of the model's own code that was allowed to run; empty runs none."""
    adapter: str = ""
    """The folder of an adapter, or nothing."""
    name: str = ""
    """What whoever asks calls it, to be told to others."""
    precision: str = ""
    """Of an adapter: the precision it was trained in."""
    base_dtype: str = ""
    """Of an adapter: what the base beside it was kept in, as recipes name it. One that was rounded
    or quantised is loaded so again: the adapter has learnt to make up for that."""
    weights: str = ""
    """The folder of a checkpoint whose weights are put in place of the model's or adapter's own."""
    ids: list[int]
    stops: list[int]
    """The tokens that end an answer."""
    stop: list[str] = []
    """Texts that end it, and are not said."""
    most: int | None = None
    """How many tokens it may have; None goes on to the end of what the model can see."""
    temperature: float = 1.0
    """0 takes the likeliest token each time."""
    top_p: float = 1.0
    seed: int | None = None
    is_turn: bool = True
    """Whether it is a turn of a conversation, which begins with no space; else a text goes on."""


class GenerationEnd(_Message):
    reason: FinishReason
    tokens: int
    """How many were written, the one that ended it included."""
    computed_in: str = ""
    """The number format that the model computed in, as `events.Sampled` says it."""


class GenerationChunk(_Message):
    """One line of an answer: one of these."""

    begun: bool = False
    """The model is loaded, and begins to write."""
    text: str = ""
    end: GenerationEnd | None = None
    failure: ServiceFailure | None = None

    def to_line(self) -> bytes:
        return self.model_dump_json(exclude_defaults=True).encode() + b"\n"


class InferenceStatus(_Message):
    """What the speaker tells its worker whenever it begins or ends an answer: a line, too."""

    name: str
    is_answering: bool
    computed_in: str = ""
    """Once it has answered: the number format that it computed in."""

    def to_line(self) -> bytes:
        return self.model_dump_json().encode() + b"\n"


def socket_path(home: Path) -> Path:
    return home / "speaker.sock"


def connect(home: Path, timeout: float) -> socket.socket:
    """Connect to the speaker of a home.

    Raises:
        OSError: there is nobody.

    """
    return unix_sockets.connect(socket_path(home), timeout)
