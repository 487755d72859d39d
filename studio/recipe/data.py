"""How rows become training examples, and how progress is measured."""

from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Gt, Le

from studio.recipe.fields import FieldSpec, Section

MaxLength = Annotated[
    int,
    Ge(16),
    Le(1_048_576),
    FieldSpec(
        "Max sequence length", "tokens", related=("optimisation.per_device_train_batch_size",)
    ),
]
Packing = Annotated[
    bool,
    FieldSpec(
        "Sequence packing",
        related=("data.max_length", "optimisation.per_device_train_batch_size"),
    ),
]


class Data(Section):
    """In conversations, only answers are trained on; in plain text, everything is."""

    max_length: MaxLength = 1024
    """Longer conversations are truncated at the end. Memory use grows with this length."""

    packing: Packing = False
    """Combine short rows into one sequence; they can't see each other. Batch size counts packed
    sequences."""

    chat_template: Annotated[
        Literal["model", "chatml", "plain"],
        FieldSpec(
            "Chat template",
            advanced=True,
            choice_titles={"model": "From the model", "chatml": "ChatML", "plain": "Plain text"},
        ),
    ] = "model"
    """How turns are formatted for the model. Base models have no template: choose one."""

    validation_share: Annotated[
        float, Gt(0), Le(0.5), FieldSpec("Validation share", advanced=True)
    ] = 0.05
    """Share of rows held out for validation if the dataset has no validation split."""


class Evaluation(Section):
    """How often the run validates and logs."""

    upstream: ClassVar[str] = "trl.SFTConfig"

    eval_steps: Annotated[
        float, Gt(0), FieldSpec("Validate every", "steps or share", usable_range=(1e-6, 10_000_000))
    ] = 0.1
    """Below 1, a share of the run (0.1 validates ten times); from 1, a number of steps."""

    per_device_eval_batch_size: Annotated[
        int, Ge(1), Le(4096), FieldSpec("Validation batch size", advanced=True)
    ] = 16
    """Examples per device during validation."""

    logging_steps: Annotated[
        int, Ge(1), Le(10_000), FieldSpec("Log every", "steps", advanced=True)
    ] = 1
    """How often the run logs metrics, which adds a point to each chart."""


class EarlyStopping(Section):
    """Stop when the validation loss no longer improves, and keep the best weights."""

    upstream: ClassVar[str] = "transformers.EarlyStoppingCallback"

    early_stopping_patience: Annotated[int | None, Ge(1), Le(1000), FieldSpec("Patience")] = None
    """Validations without improvement before the run stops. Leave empty to train to the end."""

    early_stopping_threshold: Annotated[
        float, Ge(0), FieldSpec("Min improvement", advanced=True, usable_range=(0, 1000))
    ] = 0.0
    """Smaller decreases of the validation loss do not count as improvement."""


class Samples(Section):
    """Sample answers to fixed validation prompts, before, during and after training."""

    prompts: Annotated[int, Ge(0), Le(64), FieldSpec("Sample prompts", advanced=True)] = 4
    """Number of validation prompts the model answers."""

    between: Annotated[int, Ge(0), Le(100), FieldSpec("Answers during training", advanced=True)] = 4
    """How many times the model answers during training, at validations spread evenly."""

    max_new_tokens: Annotated[
        int, Ge(1), Le(4096), FieldSpec("Max answer length", "tokens", advanced=True)
    ] = 64
    """Longer answers are truncated."""
