"""Background tasks: their definitions, and the folder of one task."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from studio.protocols.run_dir import WorkDir

FILES_DIR = "files"


@dataclass(frozen=True, slots=True)
class TaskDefinition:
    """One kind of task."""

    entry_point: str
    """The function to call, as `module:function`; only the task's process imports it. It takes the
    task's folder, its params and a progress callback, and returns the result."""
    title: str
    """The title for display."""
    needs_device: bool = False
    """Whether it waits, like an export, for a slot that no run waits for."""
    is_kept: bool = False
    """Whether its result is kept as long as its subject exists."""
    lane: str = ""
    """Tasks without a device that must not wait for others, or others for them, have a lane."""
    secrets: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The secret settings that its process gets, by the kind of its source; those under the empty
    key are always passed."""

    def required_secrets(self, params: dict[str, Any]) -> tuple[str, ...]:
        """Return the secrets that a task of this kind needs."""
        source = params.get("source")
        source_kind = source.get("kind", "") if isinstance(source, dict) else ""
        return self.secrets.get(source_kind, ())


TASK_DEFINITIONS = {
    "build": TaskDefinition("studio.runner.tasks.build_dataset:build", "Processing a dataset"),
    "benchmark": TaskDefinition(
        "studio.runner.tasks.benchmarks.benchmark:benchmark",
        "Running a benchmark",
        needs_device=True,
        secrets={"hub": ("hub_token",)},
    ),
    "calibrate": TaskDefinition(
        "studio.runner.tasks.calibrate:calibrate", "Training a few steps", needs_device=True
    ),
    "evaluate": TaskDefinition(
        "studio.runner.tasks.evaluate:evaluate", "Evaluating a model", needs_device=True
    ),
    "judge": TaskDefinition(
        "studio.runner.tasks.judge:judge",
        "Judging answers",
        secrets={"": ("judge_key",)},
    ),
    "judge-here": TaskDefinition(
        "studio.runner.tasks.judge:judge", "Judging answers", needs_device=True
    ),
    "look": TaskDefinition("studio.runner.tasks.build_dataset:scan", "Checking a dataset"),
    "measure": TaskDefinition("studio.runner.tasks.memory_dry_run:measure", "Simulating a step"),
    "fetch": TaskDefinition(
        "studio.runner.tasks.fetch_dataset:fetch",
        "Downloading a file",
        secrets={"hub": ("hub_token",), "s3": ("s3_key", "s3_secret")},
    ),
    "probe": TaskDefinition(
        "studio.runner.tasks.measure_speed:probe",
        "Measuring this machine",
        needs_device=True,
        is_kept=True,
    ),
    "push": TaskDefinition(
        "studio.runner.tasks.push_model:push",
        "Uploading a model",
        is_kept=True,
        lane="uploads",
        secrets={"": ("hub_token",)},
    ),
    "stats": TaskDefinition(
        "studio.runner.tasks.count_tokens:count", "Counting tokens", is_kept=True
    ),
    "try-grader": TaskDefinition(
        "studio.runner.tasks.try_grader:try_grader",
        "Trying a grader",
        needs_device=True,
        secrets={"endpoints": ("endpoints", "judge_key")},
    ),
    "track": TaskDefinition(
        "studio.runner.tasks.track:track",
        "Sending metrics to trackers",
        lane="trackers",
        secrets={"": ("mlflow_key", "wandb_key")},
    ),
    "download": TaskDefinition(
        "studio.runner.tasks.download_model:download",
        "Downloading a model",
        secrets={"": ("hub_token",)},
    ),
}
"""All kinds of tasks. `studio.services.queue.task_results` handles their results."""


class TaskSpec(BaseModel):
    """A task, as handed to the process that runs it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: str
    params: dict[str, Any]


@dataclass(frozen=True, slots=True)
class TaskDir(WorkDir):
    """The folder of one task. A further attempt finds the files of the previous one."""

    @property
    def result(self) -> Path:
        """The result as JSON; the file is complete or absent."""
        return self.root / "result.json"

    @property
    def files(self) -> Path:
        """The files it downloads or creates, which later attempts reuse."""
        return self.root / FILES_DIR
