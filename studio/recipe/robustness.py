"""Numeric health checks of a run, and what it may do when it fails."""

from typing import Annotated, Literal

from studio.recipe.fields import FieldSpec, Section


class Numerics(Section):
    """Numeric health checks, and what happens on NaN or infinity."""

    guard: Annotated[
        Literal["warn", "stop", "rollback"], FieldSpec("On NaN or infinity", advanced=True)
    ] = "stop"
    """Stop ends a run that can no longer learn, and leaves a checkpoint to resume from; rollback
    also saves its last good weights as files. Both skip steps whose gradient is NaN or infinite.
    Warn only notifies you. In every case, a run fails if most of its steps were skipped."""

    health: Annotated[bool, FieldSpec("Measure numeric health", advanced=True)] = True
    """Check gradients, updates and activations every tenth step. Losses do not change."""


class Recovery(Section):
    """What a run may do on its own when it fails. Its history lists each change."""

    smaller_batches: Annotated[
        bool, FieldSpec("Retry with smaller batches when out of memory", advanced=True)
    ] = False
    """Halve the batch size and double the gradient accumulation, down to a batch size of 1. Each
    update uses as many examples as before, but takes longer."""
