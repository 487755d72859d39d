"""What a run keeps of itself while it trains, and which weights it ends with."""

from typing import Annotated, ClassVar

from annotated_types import Ge, Gt, Le

from studio.recipe.fields import FieldSpec, Section


class Checkpoints(Section):
    """What is saved while the model learns, so that a run can go on where it was cut off."""

    upstream: ClassVar[str] = "trl.SFTConfig"

    save_minutes: Annotated[
        float | None,
        Gt(0),
        Le(10_080),
        FieldSpec("Save every", "minutes", advanced=True, is_studio_own=True),
    ] = 5.0
    """Training that may be lost when a run is cut off. Slow saves come less often: they never take
    more than a twentieth of the time. Leave empty to save by steps alone."""

    save_steps: Annotated[
        int | None, Ge(1), Le(10_000_000), FieldSpec("Save also every", "steps", advanced=True)
    ] = None
    """Save at these steps, too. Leave empty to save by time alone."""

    save_total_limit: Annotated[
        int, Ge(1), Le(1000), FieldSpec("Checkpoints kept", "newest", advanced=True)
    ] = 2
    """Older ones are deleted. The one with the best weights stays, where those are wanted."""

    load_best_model_at_end: Annotated[
        bool,
        FieldSpec(
            "End with the best weights",
            advanced=True,
            related=("early_stopping.early_stopping_patience",),
        ),
    ] = False
    """Go back at the end to the lowest validation loss. Early stopping always does."""

    keep_after_success: Annotated[
        bool, FieldSpec("Keep checkpoints for good", advanced=True, is_studio_own=True)
    ] = False
    """Leave the checkpoints of a run that has succeeded. Those of any other stay anyway."""
