"""When a run saves checkpoints, how many it keeps, and which weights it ends with."""

from typing import Annotated, ClassVar

from annotated_types import Ge, Gt, Le

from studio.recipe.fields import FieldSpec, Section


class Checkpoints(Section):
    """Checkpoints saved during training, so that an interrupted run can resume."""

    upstream: ClassVar[str] = "trl.SFTConfig"

    save_minutes: Annotated[
        float | None,
        Gt(0),
        Le(10_080),
        FieldSpec("Save every", "minutes", advanced=True, is_studio_own=True),
    ] = 5.0
    """The most training time an interruption can lose. Slow saves happen less often, so that they
    never take more than 5 % of the time. Leave empty to save by steps only."""

    save_steps: Annotated[
        int | None, Ge(1), Le(10_000_000), FieldSpec("Also save every", "steps", advanced=True)
    ] = None
    """Also save at these steps. Leave empty to save by time only."""

    save_total_limit: Annotated[
        int, Ge(1), Le(1000), FieldSpec("Checkpoints to keep", "newest", advanced=True)
    ] = 2
    """Older checkpoints are deleted, except the best one if the run ends with its weights."""

    load_best_model_at_end: Annotated[
        bool,
        FieldSpec(
            "End with the best weights",
            advanced=True,
            related=("early_stopping.early_stopping_patience",),
        ),
    ] = False
    """Finish with the weights of the lowest validation loss. Early stopping always does."""

    keep_after_success: Annotated[
        bool, FieldSpec("Keep checkpoints after success", advanced=True, is_studio_own=True)
    ] = False
    """Keep the checkpoints of a run that succeeds. Other runs always keep theirs."""
