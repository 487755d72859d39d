"""What a run may change in its own recipe to recover from a failure."""

from typing import Annotated

from studio.recipe.fields import FieldSpec, Section


class Recovery(Section):
    """What a run may do on its own when it fails. Its history lists each change."""

    smaller_batches: Annotated[
        bool, FieldSpec("Retry with smaller batches when out of memory", advanced=True)
    ] = False
    """Halve the batch size and double the gradient accumulation, down to a batch size of 1. Each
    update uses as many examples as before, but takes longer."""
