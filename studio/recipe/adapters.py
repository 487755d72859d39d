"""What of a model is trained: an adapter next to the frozen model, or the model's own weights.

Names match the upstream config that takes them, such as `peft.LoraConfig`.
"""

from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Le, Lt
from pydantic import Field

from studio.recipe.fields import FieldSpec, Section
from studio.recipe.lora_variants import LORA_VARIANTS, LoraVariant, VariantName
from studio.recipe.precision import QUANTISED, Precision, Quantised
from studio.weights.adapter_targets import AdapterTargets, LinearLayer, TargetGroup, parse_names
from studio.weights.trained_weights import ExtraModules, TrainedPart

_EXTRA_TITLES = {
    "none": "Nothing else",
    "norms": "Norms",
    "output": "Output layer",
    "embeddings": "Embeddings and output layer",
    "norms_and_embeddings": "Norms, embeddings and output layer",
}


class Adapter(Section):
    """A small adapter that is trained next to the frozen model: what all kinds have in common.

    `base_dtype` applies to the frozen model.
    """

    title: ClassVar[str]
    """What it is called in a sentence, without its article."""
    can_tie: ClassVar[bool] = False
    """Whether it can train embeddings next to it that the output layer shares."""

    kind: str

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

    def weight_sizes(self, layer: LinearLayer) -> tuple[int, ...]:
        """Return the sizes of the weights that a linear layer gets."""
        raise NotImplementedError

    @property
    def lora_variant(self) -> LoraVariant | None:
        """The variant of LoRA; None if it is another adapter."""
        return None

    @property
    def changes_base(self) -> bool:
        """Whether it starts as a part of the base model's weights, which it takes out of them."""
        return self.lora_variant is not None and self.lora_variant.changes_base

    @property
    def changes_start(self) -> bool:
        """Whether the model without its adapter is not the model before training."""
        variant = self.lora_variant
        is_part = variant is not None and variant.changes_start
        return is_part or self.continue_from is not None


class Lora(Adapter, title="LoRA adapter"):
    """Train a small adapter next to the frozen model."""

    upstream: ClassVar[str] = "peft.LoraConfig"
    title: ClassVar[str] = "LoRA adapter"
    can_tie: ClassVar[bool] = True

    kind: Literal["lora"] = "lora"

    r: Annotated[int, Ge(1), Le(1024), FieldSpec("LoRA rank")] = 16
    """Size of the adapter. A higher rank learns more and uses more memory."""

    lora_alpha: Annotated[int, Ge(1), Le(4096), FieldSpec("LoRA alpha", advanced=True)] = 32
    """Scales the adapter's effect; twice the rank is a good start."""

    lora_dropout: Annotated[float, Ge(0), Lt(1), FieldSpec("LoRA dropout", advanced=True)] = 0.0
    """Share of adapter inputs dropped at random in each step, to reduce overfitting."""

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
    learn faster; they need a model that is not quantised, and are saved at twice the rank. EVA
    starts with what the training data varies in: worth trying at low ranks, also if quantised.
    LoftQ starts with what quantising has rounded away: worth trying with 4 bits."""

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

    def weight_sizes(self, layer: LinearLayer) -> tuple[int, ...]:
        magnitudes = (layer.outputs,) if self.lora_variant.trains_magnitudes else ()
        return (self.r * layer.inputs, self.r * layer.outputs, *magnitudes)

    @property
    def lora_variant(self) -> LoraVariant:
        return LORA_VARIANTS[self.variant]


class Oft(Adapter, title="OFT adapter"):
    """Rotate what each layer reads, in blocks. Worth comparing with LoRA; steps take longer."""

    upstream: ClassVar[str] = "peft.OFTConfig"
    title: ClassVar[str] = "OFT adapter"

    kind: Literal["oft"] = "oft"

    oft_block_size: Annotated[int, Ge(2), Le(1024), FieldSpec("OFT block size")] = 32
    """How many inputs of a layer are rotated together. Larger blocks learn more and use more
    memory. It must divide the number of inputs of every layer that gets an adapter."""

    def weight_sizes(self, layer: LinearLayer) -> tuple[int, ...]:
        size = self.oft_block_size
        return (layer.inputs // size * (size * (size - 1) // 2),)


class Ia3(Adapter, title="IA3 adapter"):
    """Learn one factor per channel: the smallest adapter. Needs a 10 to 50 times higher rate."""

    upstream: ClassVar[str] = "peft.IA3Config"
    title: ClassVar[str] = "IA3 adapter"

    kind: Literal["ia3"] = "ia3"

    def weight_sizes(self, layer: LinearLayer) -> tuple[int, ...]:
        return (layer.inputs if layer.narrows else layer.outputs,)


class FullFineTune(Section, title="Full fine-tune"):
    """Train the model's own weights. Learns the most, with more memory and a lower rate."""

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

    @property
    def changes_start(self) -> bool:
        """Always False: there is no adapter to turn off."""
        return False


AnyAdapter = Lora | Oft | Ia3 | FullFineTune
"""What a recipe trains."""


def keeps_saved_dtypes(adapter: AnyAdapter, mode: Precision) -> bool:
    """Whether each weight of the base model keeps the format it was saved in.

    Without autocast, weights are cast to the compute format.
    """
    is_native = isinstance(adapter, Adapter) and adapter.base_dtype == "native"
    return is_native and mode.autocast is not None
