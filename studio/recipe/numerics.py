"""What is measured of a run's numbers, and what happens when they break."""

from typing import Annotated, Literal

from studio.recipe.fields import FieldSpec, Section


class Numerics(Section):
    """What is measured of the run's numbers, and what happens when they break."""

    guard: Annotated[
        Literal["warn", "stop", "rollback"], FieldSpec("When numbers break", advanced=True)
    ] = "stop"
    """Stop ends a run that can learn nothing any more, and leaves a checkpoint to go on from;
    rollback also keeps its last good weights as files. Both leave out a step whose gradient is no
    number. Warn only tells you. Whatever you choose, a run fails if most of its steps were left
    out."""

    health: Annotated[bool, FieldSpec("Measure numeric health", advanced=True)] = True
    """Look at gradients, updates and activations every tenth step. Losses stay the same."""
