"""The sections of a recipe but the adapter: data, optimisation, evaluation and checkpoints.

Names match the upstream config that takes them, such as `TrainingArguments`.
"""

from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Gt, Le

from studio.recipe.fields import FieldSpec, Section
from studio.recipe.optimizers import OptimizerName

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


ChatTemplateChoice = Literal["model", "chatml", "plain"]


class Data(Section):
    """In conversations, only answers are trained on; in plain text, everything is."""

    max_length: MaxLength = 1024
    """Longer conversations are truncated at the end. Memory use grows with this length."""

    packing: Packing = False
    """Combine short rows into one sequence; they can't see each other. Batch size counts packed
    sequences."""

    chat_template: Annotated[
        ChatTemplateChoice,
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


AfterTraining = Literal["none", "quick", "full"]
"""Which rows the finished model answers, and its base model: none, a few or many."""


class Evaluation(Section):
    """How often the run validates and logs, and whether the finished model is evaluated."""

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

    after_training: Annotated[
        AfterTraining,
        FieldSpec(
            "Evaluate the finished model",
            is_studio_own=True,
            advanced=True,
            choice_titles={"none": "No", "quick": "On 64 rows", "full": "On up to 1,000 rows"},
        ),
    ] = "quick"
    """The finished model and its base model answer validation rows, and their answers are compared.
    Nothing waits for it."""


class NoEvaluation(Evaluation):
    """No evaluation of the finished model: it writes no answers."""

    after_training: Literal["none"] = "none"


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


class NoSamples(Samples):
    """No sample answers: the model writes none."""

    prompts: Literal[0] = 0
    between: Literal[0] = 0
    max_new_tokens: Literal[1] = 1


SamplingStrategy = Annotated[
    Literal["group_by_length", "random", "sequential"],
    FieldSpec("Order of examples", advanced=True),
]
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

    embedding_learning_rate: Annotated[
        float | None,
        Gt(0),
        Le(1),
        FieldSpec(
            "Embedding learning rate",
            advanced=True,
            is_studio_own=True,
            usable_range=(1e-12, 1),
        ),
    ] = None
    """Step size of the token embeddings and the output layer, if both are trained. Usually 2 to 10
    times smaller than the learning rate. Leave empty to use the learning rate."""

    num_train_epochs: Epochs = 3.0
    """Number of passes over the training data."""

    max_steps: Annotated[
        int | None,
        Ge(1),
        Le(10_000_000),
        FieldSpec("Max steps", "steps", related=("early_stopping.early_stopping_patience",)),
    ] = None
    """Stop after this many updates, regardless of epochs. Leave empty to use epochs."""

    max_minutes: Annotated[
        float | None,
        Gt(0),
        FieldSpec(
            "Time limit",
            "minutes",
            advanced=True,
            is_studio_own=True,
            usable_range=(0.05, 100_000),
            related=("evaluation.eval_steps", "samples.between"),
        ),
    ] = None
    """Train only as many steps as fit into this time, including loading, validations, sample
    answers and saving. A few batches are timed first, and the learning rate schedule follows."""

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
        OptimizerName,
        FieldSpec(
            "Optimizer",
            advanced=True,
            related=("precision",),
            choice_titles={"adamw_8bit": "8-bit AdamW", "lion_32bit": "Lion", "muon": "Muon"},
        ),
    ] = "adamw_torch_fused"
    """Fused AdamW suits almost every run. 8-bit AdamW needs a quarter of its memory and learns
    nearly the same, but is several times slower on a CPU; Adafactor needs less still. Lion keeps
    one value per weight instead of two, and needs a 3 to 10 times lower learning rate. Muon, for
    full fine-tunes, steps equally far in every direction of a matrix at AdamW's learning rates, and
    takes more time."""

    train_sampling_strategy: SamplingStrategy = "group_by_length"
    """Grouping by length avoids time spent on padding; random order is the textbook choice."""

    activation_checkpointing: Annotated[
        bool, FieldSpec("Activation checkpointing", advanced=True)
    ] = False
    """Recompute activations instead of storing them: less memory, about a third slower."""

    activation_offloading: Annotated[
        bool,
        FieldSpec(
            "Activation offloading",
            advanced=True,
            is_studio_own=True,
            related=("optimisation.activation_checkpointing",),
        ),
    ] = False
    """Keep activations in the host's memory until the backward pass needs them: far less memory on
    the GPU, without computing anything twice. Slower if the GPU waits for the copies. Together with
    activation checkpointing, only the inputs of the layers are copied."""

    seed: Annotated[int, Ge(0), Le(2**32 - 1), FieldSpec("Seed", advanced=True)] = 42
    """Runs with the same recipe and seed have identical losses on the same machine."""


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
