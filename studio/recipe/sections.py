"""The sections of a recipe: what is trained, on what, how long, and how it is saved and checked.

Names match the upstream config that takes them, such as `TrainingArguments`.
"""

from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Gt, Le, Lt
from pydantic import Field

from studio.recipe.fields import FieldSpec, Section
from studio.recipe.lora_variants import LORA_VARIANTS, LoraVariant, VariantName
from studio.recipe.optimizers import OptimizerName
from studio.recipe.precision import QUANTISED, Precision, Quantised
from studio.weights.adapter_targets import AdapterTargets, TargetGroup, parse_names
from studio.weights.trained_weights import ExtraModules, TrainedPart

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


class NoSamples(Samples):
    """No sample answers: the model writes none."""

    prompts: Literal[0] = 0
    between: Literal[0] = 0
    max_new_tokens: Literal[1] = 1


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
    nearly the same; Adafactor needs less still. Lion keeps one value per weight instead of two, and
    needs a 3 to 10 times lower learning rate. Muon, for full fine-tunes, steps equally far in every
    direction of a matrix at AdamW's learning rates, and takes more time."""

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


_EXTRA_TITLES = {
    "none": "Nothing else",
    "norms": "Norms",
    "output": "Output layer",
    "embeddings": "Embeddings and output layer",
    "norms_and_embeddings": "Norms, embeddings and output layer",
}


class Lora(Section, title="LoRA adapter"):
    """Train a small adapter next to the frozen model.

    `base_dtype` applies to the frozen model.
    """

    upstream: ClassVar[str] = "peft.LoraConfig"

    kind: Literal["lora"] = "lora"

    r: Annotated[int, Ge(1), Le(1024), FieldSpec("LoRA rank")] = 16
    """Size of the adapter. A higher rank learns more and uses more memory."""

    lora_alpha: Annotated[int, Ge(1), Le(4096), FieldSpec("LoRA alpha", advanced=True)] = 32
    """Scales the adapter's effect; twice the rank is a good start."""

    lora_dropout: Annotated[float, Ge(0), Lt(1), FieldSpec("LoRA dropout", advanced=True)] = 0.0
    """Share of adapter inputs dropped at random in each step, to reduce overfitting."""

    target_modules: Annotated[
        TargetGroup,
        FieldSpec(
            "Target modules",
            advanced=True,
            choice_titles={
                "all-linear": "All linear layers",
                "attention": "Attention",
                "mlp": "MLP",
            },
        ),
    ] = "all-linear"
    """Which linear layers get an adapter. All learns the most; attention or the MLP alone (every
    linear layer outside attention) needs less memory. The output layer never gets one."""

    module_names: Annotated[
        str | None,
        Field(max_length=1000, pattern=r"^\s*\w+\s*(,\s*\w+\s*)*$"),
        FieldSpec("Module names", advanced=True, is_studio_own=True),
    ] = None
    """Only modules with these names get an adapter, such as `q_proj, v_proj`. Leave empty for all
    target modules."""

    last_layers: Annotated[
        int | None,
        Ge(1),
        Le(10_000),
        FieldSpec("Last layers only", "layers", advanced=True, is_studio_own=True),
    ] = None
    """Only this many decoder layers, counted from the output, get an adapter: steps are faster and
    need less memory, but learn less. Leave empty for all layers."""

    extra_modules: Annotated[
        ExtraModules,
        FieldSpec(
            "Also train in full",
            advanced=True,
            is_studio_own=True,
            choice_titles=_EXTRA_TITLES,
        ),
    ] = "none"
    """Parts of the model that are trained next to the adapter, and saved with it as a whole.
    Embeddings are needed for new words or another language, and make the adapter much larger."""

    use_rslora: Annotated[bool, FieldSpec("Rank-stabilised scaling", advanced=True)] = False
    """Scale by the square root of the rank (rsLoRA): worth trying from rank 64."""

    variant: Annotated[
        VariantName,
        FieldSpec(
            "LoRA variant",
            advanced=True,
            is_studio_own=True,
            related=("adapter.base_dtype",),
            choice_titles={name: row.title for name, row in LORA_VARIANTS.items()},
        ),
    ] = "plain"
    """Plain LoRA suits almost every run. DoRA comes closer to a full fine-tune at low ranks, but
    steps take about 1.4 times as long. PiSSA and OLoRA start from the model's own weights and often
    learn faster; they need a model that is not quantised, and are saved at twice the rank."""

    lr_ratio: Annotated[
        float,
        Ge(1),
        Le(1000),
        FieldSpec(
            "LoRA+ ratio",
            advanced=True,
            is_studio_own=True,
            related=("optimisation.learning_rate",),
        ),
    ] = 1.0
    """How many times the learning rate the adapter's second matrix (B) uses. 16 is usual for LoRA+,
    with a somewhat lower learning rate; 1 is plain LoRA."""

    base_dtype: Annotated[
        Literal["native", "float32", "bfloat16", "float16", "int8", "nf4"],
        FieldSpec(
            "Frozen model format",
            is_studio_own=True,
            related=("precision",),
            choice_titles={"native": "As saved"}
            | {name: row.title for name, row in QUANTISED.items()},
        ),
    ] = "native"
    """As saved keeps each weight in the format of its file. Modes that compute in float32 widen
    it to float32. 8 bits take half the memory of 16 bits; 4 bits take a quarter."""

    continue_from: Annotated[
        str | None,
        Field(max_length=20, pattern=r"^run-[1-9]\d*$"),
        FieldSpec("Continue from run", advanced=True, is_studio_own=True),
    ] = None
    """Train on from the adapter of another run, such as `run-12`, instead of a new adapter. It
    needs the same base model, rank, alpha, variant and targets. Leave empty for a new adapter."""

    @property
    def quantised(self) -> Quantised | None:
        """The format that the frozen model is quantised to, or None."""
        return QUANTISED.get(self.base_dtype)

    @property
    def targets(self) -> AdapterTargets:
        """The linear layers that get an adapter."""
        names = parse_names(self.module_names)
        return AdapterTargets(group=self.target_modules, names=names, last_layers=self.last_layers)

    @property
    def trained(self) -> TrainedPart:
        """The weights of the model itself that are trained."""
        return TrainedPart(last_layers=0, extra=self.extra_modules)

    @property
    def lora_variant(self) -> LoraVariant:
        return LORA_VARIANTS[self.variant]


class FullFineTune(Section, title="Full fine-tune"):
    """Train every weight. Learns the most, needs the most memory and a lower learning rate."""

    kind: Literal["full"] = "full"
    continue_from: ClassVar[None] = None
    """It continues from a run by using its model as the base model."""

    trained_layers: Annotated[
        int | None, Ge(0), Le(10_000), FieldSpec("Last layers only", "layers", advanced=True)
    ] = None
    """Only this many decoder layers, counted from the output, are trained; the rest stays frozen.
    Needs less memory and forgets less, but learns less. Leave empty to train every weight."""

    also_trained: Annotated[
        ExtraModules,
        FieldSpec(
            "Also train",
            advanced=True,
            choice_titles=_EXTRA_TITLES,
        ),
    ] = "none"
    """Trained besides the last layers. Embeddings help with new words or another language; norms
    are few weights that adjust every layer. With 0 last layers, nothing else is trained."""

    @property
    def trained(self) -> TrainedPart:
        """The weights that are trained."""
        return TrainedPart(last_layers=self.trained_layers, extra=self.also_trained)

    @property
    def quantised(self) -> None:
        """Always None: quantised weights cannot be trained by small steps."""

    @property
    def lora_variant(self) -> None:
        """Always None: there is no adapter."""


def keeps_saved_dtypes(adapter: Lora | FullFineTune, mode: Precision) -> bool:
    """Whether each weight of the base model keeps the format it was saved in.

    Without autocast, weights are cast to the compute format.
    """
    is_native = isinstance(adapter, Lora) and adapter.base_dtype == "native"
    return is_native and mode.autocast is not None


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
