"""How fast and how long the model trains. Names match `TrainingArguments`."""

from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Gt, Le

from studio.recipe.fields import FieldSpec, Section

LearningRate = Annotated[
    float,
    Gt(0),
    Le(1),
    FieldSpec(
        "Learning rate", usable_range=(1e-12, 1), related=("precision", "adapter.lora_alpha")
    ),
]
Epochs = Annotated[float, Gt(0), Le(1000), FieldSpec("Epochs", usable_range=(1e-6, 1000))]


class Optimisation(Section):
    """How fast and how long the model trains."""

    upstream: ClassVar[str] = "trl.SFTConfig"

    learning_rate: LearningRate = 2e-4
    """Step size. Halve it if the loss jumps around; double it if the loss barely moves."""

    num_train_epochs: Epochs = 3.0
    """Number of passes over the training data."""

    max_steps: Annotated[
        int | None,
        Ge(1),
        Le(10_000_000),
        FieldSpec("Max steps", "steps", related=("early_stopping.early_stopping_patience",)),
    ] = None
    """Stop after this many updates, regardless of epochs. Leave empty to use epochs."""

    per_device_train_batch_size: Annotated[
        int,
        Ge(1),
        Le(4096),
        FieldSpec("Batch size", related=("data.max_length", "recovery.smaller_batches")),
    ] = 8
    """Examples per device and step. If memory runs out, lower this first."""

    gradient_accumulation_steps: Annotated[
        int, Ge(1), Le(4096), FieldSpec("Gradient accumulation", "steps", advanced=True)
    ] = 1
    """Batches to accumulate before each update: a larger effective batch without the memory."""

    lr_scheduler_type: Annotated[
        Literal[
            "linear",
            "cosine",
            "constant",
            "constant_with_warmup",
            "inverse_sqrt",
            "polynomial",
        ],
        FieldSpec("Learning rate schedule", advanced=True),
    ] = "cosine"
    """How the learning rate changes over the run. Cosine is a good default."""

    warmup_steps: Annotated[
        float,
        Ge(0),
        FieldSpec("Warm-up", "steps or share", advanced=True, usable_range=(0, 10_000_000)),
    ] = 0.03
    """Ramp up the learning rate: below 1, a share of the run; from 1, a number of steps."""

    weight_decay: Annotated[float, Ge(0), Le(1), FieldSpec("Weight decay", advanced=True)] = 0.0
    """Pulls weights towards zero. Try 0.01 if a full fine-tune overfits."""

    max_grad_norm: Annotated[
        float, Gt(0), FieldSpec("Gradient clipping", advanced=True, usable_range=(1e-9, 1_000_000))
    ] = 1.0
    """Maximum gradient norm per update. Lower it if the loss spikes."""

    optim: Annotated[
        Literal["adamw_torch_fused", "adamw_torch", "adafactor", "sgd"],
        FieldSpec("Optimizer", advanced=True, related=("precision",)),
    ] = "adamw_torch_fused"
    """Fused AdamW suits almost every run; Adafactor saves memory."""

    train_sampling_strategy: Annotated[
        Literal["group_by_length", "random", "sequential"],
        FieldSpec("Order of examples", advanced=True),
    ] = "group_by_length"
    """Grouping by length avoids time spent on padding; random order is the textbook choice."""

    activation_checkpointing: Annotated[
        bool, FieldSpec("Activation checkpointing", advanced=True)
    ] = False
    """Recompute activations instead of storing them: less memory, about a third slower."""

    seed: Annotated[int, Ge(0), Le(2**32 - 1), FieldSpec("Seed", advanced=True)] = 42
    """Runs with the same recipe and seed have identical losses on the same machine."""
