"""Chores: long work that no run waits for. Which kinds there are, and the folder of one."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from studio.protocols.run_dir import WorkDir

FILES_DIR = "files"


@dataclass(frozen=True, slots=True)
class TaskDefinition:
    """One kind of chore."""

    entry_point: str
    """What does it, as `module:function`; only its own process imports that. It is called with the
    chore's folder, its params, and what to tell its progress to; it returns the result."""
    title: str
    """What a person calls it."""
    needs_device: bool = False
    """Whether it waits, like an export, for a slot that no run waits for."""
    is_kept: bool = False
    """Whether its result is looked up for as long as there is what it tells of."""
    secrets: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Which secrets of the settings its process is given, by the kind of source it asks; under no
    name those that it always is."""

    def required_secrets(self, params: dict[str, Any]) -> tuple[str, ...]:
        """Return the secrets that one chore of this kind needs."""
        source = params.get("source")
        asked = source.get("kind", "") if isinstance(source, dict) else ""
        return self.secrets.get(asked, ())


TASK_DEFINITIONS = {
    "build": TaskDefinition("studio.runner.tasks.build_dataset:build", "Reading a data set"),
    "calibrate": TaskDefinition(
        "studio.runner.tasks.calibrate:calibrate", "Training a few steps", needs_device=True
    ),
    "look": TaskDefinition("studio.runner.tasks.scan_dataset:scan", "Looking through a data set"),
    "measure": TaskDefinition("studio.runner.tasks.memory_dry_run:measure", "Going through a step"),
    "fetch": TaskDefinition(
        "studio.runner.tasks.fetch_dataset:fetch",
        "Fetching a file",
        secrets={"hub": ("hub_token",), "s3": ("s3_key", "s3_secret")},
    ),
    "probe": TaskDefinition(
        "studio.runner.tasks.measure_speed:probe",
        "Measuring this machine",
        needs_device=True,
        is_kept=True,
    ),
    "stats": TaskDefinition(
        "studio.runner.tasks.count_tokens:count", "Counting tokens", is_kept=True
    ),
    "download": TaskDefinition(
        "studio.runner.tasks.download_model:download",
        "Downloading a model",
        secrets={"": ("hub_token",)},
    ),
}
"""Every kind there is. What its end means to others: `studio.services.queue.task_results`."""


class TaskSpec(BaseModel):
    """A chore, as the process that does it is told."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: str
    params: dict[str, Any]


@dataclass(frozen=True, slots=True)
class TaskDir(WorkDir):
    """The folder of one chore. Another attempt finds in it the files of the one before."""

    @property
    def result(self) -> Path:
        """What it came to, as JSON: whole, or not there."""
        return self.root / "result.json"

    @property
    def files(self) -> Path:
        """Room for what it fetches or makes; kept from one attempt to the next."""
        return self.root / FILES_DIR
