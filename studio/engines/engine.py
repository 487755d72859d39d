"""What is known of an engine, and what it needs to know of the model that it serves."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from studio.errors import UnavailableError
from studio.settings import Settings

EngineName = Literal["studio", "llama.cpp", "vllm"]
ModelFormat = Literal["folder", "adapter", "gguf"]
"""A folder of safetensors, an adapter with its base model, or a GGUF file."""
ProgramSetting = Literal["llama_server", "vllm"]

HOST = "127.0.0.1"
"""Engines are reached through the studio alone, which knows who may ask."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What a command line is made of."""

    program: str
    name: str
    """The name under which the model is served."""
    path: Path
    """The folder of the model, its GGUF file, or for an adapter the base model."""
    adapter: Path | None = None
    adapter_rank: int = 0
    dtype: str = "auto"
    """The number format to compute in, as torch names it."""
    port: int


def no_command(_launch: Launch) -> list[str]:
    raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    name: EngineName
    title: str
    summary: str
    """What it is good for, in one sentence."""
    formats: frozenset[ModelFormat]
    needs: str
    """What it can serve, as the end of "It serves …"."""
    program: ProgramSetting | None = None
    """The setting that names its program; None if the studio itself answers."""
    missing_hint: str = ""
    """What to do if its program is not there."""
    command: Callable[[Launch], list[str]] = no_command
    environment: Mapping[str, str] = field(default_factory=dict)
    key_variable: str = ""
    """The environment variable with the key that it asks for. In the arguments, every user of the
    machine could read it."""
    health_path: str = "/health"
    """Answers with 200 once the model can be asked, and needs no key."""
    start_seconds: float = 600
    """How long loading a model may take."""

    @property
    def is_external(self) -> bool:
        """Whether it has a process and a port of its own."""
        return self.program is not None

    def find_program(self, settings: Settings) -> str:
        """Return the path of its program.

        Raises:
            UnavailableError: It is not there.

        """
        assert self.program is not None  # noqa: S101 -- only for engines with a program
        wanted: str = getattr(settings, self.program)
        found = shutil.which(str(Path(wanted).expanduser()))
        if found is None:
            raise UnavailableError(
                f"{self.title} was not found: there is no program {wanted}.",
                hint=f"{self.missing_hint} Or set STUDIO_{self.program.upper()} to its path.",
            )
        return found


def listen_options(launch: Launch) -> Sequence[str]:
    """Return the options of where to listen, which all engines spell alike."""
    return ("--host", HOST, "--port", str(launch.port))
