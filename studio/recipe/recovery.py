"""What a run may change of its own recipe, to go on where it failed."""

from typing import Annotated

from studio.recipe.fields import FieldSpec, Section


class Recovery(Section):
    """What a run may do by itself when it fails. Each change is told in its history."""

    smaller_batches: Annotated[
        bool, FieldSpec("Try smaller batches when memory runs out", advanced=True)
    ] = False
    """Halve the batch size and double the accumulation, down to one: updates learn from as many
    examples as before, and take longer."""
