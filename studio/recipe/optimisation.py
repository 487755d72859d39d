"""How fast, and for how long, the model learns. Names are those of `TrainingArguments`."""

from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Gt, Le

from studio.recipe.fields import FieldSpec, Section


class Optimisation(Section):
    """How fast, and for how long, the model learns."""

    upstream: ClassVar[str] = "trl.SFTConfig"

    learning_rate: Annotated[
        float,
        Gt(0),
        Le(1),
        FieldSpec(
            "Learning rate", usable_range=(1e-12, 1), related=("precision", "adapter.lora_alpha")
        ),
    ] = 2e-4
    """Step size. Halve it if the loss jumps about; double it if the loss barely moves."""

    num_train_epochs: Annotated[
        float, Gt(0), Le(1000), FieldSpec("Epochs", usable_range=(1e-6, 1000))
    ] = 3.0
    """How many times the model reads the whole data set."""

    max_steps: Annotated[
        int | None,
        Ge(1),
        Le(10_000_000),
        FieldSpec("Stop after", "steps", related=("early_stopping.early_stopping_patience",)),
    ] = None
    """End after this many updates, whatever the epochs. Leave empty to go by epochs."""

    per_device_train_batch_size: Annotated[
        int,
        Ge(1),
        Le(4096),
        FieldSpec("Batch size", related=("data.max_length", "recovery.smaller_batches")),
    ] = 8
    """Examples per device and step. Lower it first when memory runs out."""

    gradient_accumulation_steps: Annotated[
        int, Ge(1), Le(4096), FieldSpec("Gradient accumulation", "steps", advanced=True)
    ] = 1
    """Batches to add up before each update: a larger batch, without its memory."""

    lr_scheduler_type: Annotated[
        Literal[
            "linear",
            "cosine",
            "constant",
            "constant_with_warmup",
            "inverse_sqrt",
            "polynomial",
        ],
        FieldSpec("Schedule", advanced=True),
    ] = "cosine"
    """How the learning rate falls over the run. Cosine is a good default."""

    warmup_steps: Annotated[
        float,
        Ge(0),
        FieldSpec("Warm-up", "steps or share", advanced=True, usable_range=(0, 10_000_000)),
    ] = 0.03
    """Start gently: below 1 it is a share of the run, from 1 on a number of steps."""

    weight_decay: Annotated[float, Ge(0), Le(1), FieldSpec("Weight decay", advanced=True)] = 0.0
    """Pulls weights towards zero. Try 0.01 when a full fine-tune overfits."""

    max_grad_norm: Annotated[
        float, Gt(0), FieldSpec("Gradient clipping", advanced=True, usable_range=(1e-9, 1_000_000))
    ] = 1.0
    """Longest gradient allowed in one update. Lower it if the loss spikes."""

    optim: Annotated[
        Literal["adamw_torch_fused", "adamw_torch", "adafactor", "sgd"],
        FieldSpec("Optimizer", advanced=True, related=("precision",)),
    ] = "adamw_torch_fused"
    """AdamW in one fused kernel suits nearly everything; Adafactor saves memory."""

    train_sampling_strategy: Annotated[
        Literal["group_by_length", "random", "sequential"],
        FieldSpec("Order of examples", advanced=True),
    ] = "group_by_length"
    """Batches of like length waste no time on padding; random order is the purist's choice."""

    activation_checkpointing: Annotated[
        bool, FieldSpec("Activation checkpointing", advanced=True)
    ] = False
    """Compute activations twice instead of keeping them: less memory, about a third slower."""

    seed: Annotated[int, Ge(0), Le(2**32 - 1), FieldSpec("Seed", advanced=True)] = 42
    """Two runs of one recipe and one seed give equal losses on one machine."""
