"""The checkpoints of one run on disk: write, verify, find the newest, and prune."""

import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from studio import hardware
from studio.errors import TrainingError
from studio.protocols.events import AlarmRaised
from studio.recipe.base import Recipe, upgrade
from studio.training.checkpoints import checksums
from studio.training.checkpoints.checksums import CheckpointManifest, CorruptCheckpointError

FREE_SPACE_FACTOR = 2
"""Free space required to write a checkpoint, in checkpoint sizes: other processes write, too."""

_FOLDER_NAME = re.compile(r"checkpoint-(\d+)")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    folder: Path
    manifest: CheckpointManifest

    @property
    def step(self) -> int:
        return self.manifest.step


class CheckpointStore:
    """The checkpoints of a run."""

    def __init__(self, folder: Path, recipe: Recipe) -> None:
        self._folder = folder
        self._recipe = recipe

    def folder_for(self, step: int) -> Path:
        return self._folder / f"checkpoint-{step}"

    def newest_valid(self, emit: Callable[[AlarmRaised], None]) -> Checkpoint | None:
        """Return the newest intact checkpoint. Report corrupt ones and set them aside."""
        self._remove_partial()
        for step in reversed(self._steps()):
            try:
                manifest = checksums.verify_folder(self.folder_for(step))
                self._refuse_other_recipe(manifest, step)
            except CorruptCheckpointError as error:
                emit(self._quarantine(step, error))
            else:
                return Checkpoint(self.folder_for(step), manifest)
        return None

    @contextmanager
    def write(self, step: int, best_step: int | None) -> Iterator[Path]:
        """Yield a folder that becomes the step's checkpoint only if no error occurs.

        Raises:
            OSError: the disk failed or is full. Older checkpoints are unchanged.

        """
        self._remove_partial()
        partial = self._folder / f".checkpoint-{step}.partial"
        partial.mkdir(parents=True)
        manifest = CheckpointManifest(
            step=step,
            best_step=best_step,
            recipe=self._recipe.model_dump(mode="json"),
            versions=hardware.package_versions(),
        )
        try:
            yield partial
            checksums.commit_folder(partial, self.folder_for(step), manifest)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise

    def refuse_if_disk_full(self, size: int) -> None:
        """Refuse to write `size` bytes if that could fill the disk.

        Raises:
            TrainingError: there is not enough free space.

        """
        self._folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(self._folder).free
        if free < FREE_SPACE_FACTOR * size:
            raise TrainingError(
                "disk_full",
                f"The checkpoint needs {_format_size(size)}, but only {_format_size(free)} "
                "are free on the disk.",
                hint="Delete old runs or models.",
            )

    def prune(self, limit: int, best_step: int | None) -> None:
        """Delete all but the newest checkpoints and the best ones that they or the run refer to."""
        steps = self._steps()
        kept_steps = set(steps[-limit:])
        kept_steps |= {best for step in kept_steps if (best := self._best_of(step)) is not None}
        for step in steps:
            if step not in kept_steps and step != best_step:
                checksums.remove_folder(self.folder_for(step))

    def size_of(self, step: int) -> int:
        """Return the size of a checkpoint, in bytes."""
        return sum(file.stat().st_size for file in self.folder_for(step).iterdir())

    def clear(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def _steps(self) -> list[int]:
        names = (_FOLDER_NAME.fullmatch(path.name) for path in self._folder.glob("checkpoint-*"))
        return sorted(int(name[1]) for name in names if name)

    def _best_of(self, step: int) -> int | None:
        try:
            return checksums.read_manifest(self.folder_for(step)).best_step
        except CorruptCheckpointError:
            # No run will resume from it, so it needs no best checkpoint.
            return None

    def _refuse_other_recipe(self, manifest: CheckpointManifest, step: int) -> None:
        if manifest.step != step:
            raise CorruptCheckpointError(f"it belongs to step {manifest.step}")
        try:
            values = upgrade(dict(manifest.recipe))
            recipe = type(self._recipe).model_validate(values, strict=False)
        except ValidationError as error:
            raise CorruptCheckpointError(
                "this version of the studio cannot read its recipe"
            ) from error
        if _with_one_batch(recipe) != _with_one_batch(self._recipe):
            raise CorruptCheckpointError("it was written by a different recipe")

    def _quarantine(self, step: int, error: CorruptCheckpointError) -> AlarmRaised:
        broken = self.folder_for(step).with_name(f"broken-checkpoint-{step}")
        checksums.remove_folder(broken)
        self.folder_for(step).rename(broken)
        return AlarmRaised(
            code="broken_checkpoint",
            message=f"The checkpoint of step {step} cannot be used: {error}.",
            hint=f"It was renamed to {broken.name}. Trying the previous checkpoint.",
            step=step,
        )

    def _remove_partial(self) -> None:
        """Delete what a killed process left half written or half deleted."""
        for path in self._folder.glob(".checkpoint-*"):
            shutil.rmtree(path, ignore_errors=True)


def _with_one_batch(recipe: Recipe) -> Recipe:
    """Return the recipe with one batch per update: splitting it does not change the result."""
    steps = recipe.optimisation
    batch_size = steps.per_device_train_batch_size * steps.gradient_accumulation_steps
    one_batch = {"per_device_train_batch_size": batch_size, "gradient_accumulation_steps": 1}
    return recipe.model_copy(update={"optimisation": steps.model_copy(update=one_batch)})


def _format_size(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"
