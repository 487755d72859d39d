"""The recipe: everything a run needs to know, and nothing it can find out by itself.

A section whose fields go to one upstream config keeps that config's names, so that you can pass it
as `Config(**section.model_dump())` and no list of names exists twice.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field

from studio.recipe import adapters, sections
from studio.recipe.attention import ATTENTIONS
from studio.recipe.fields import FieldSpec, Section, field_spec
from studio.recipe.images import ImageOptions
from studio.recipe.model_options import ModelOptions
from studio.recipe.optimizers import OPTIMIZERS
from studio.recipe.precision import AUTO, PRECISIONS, Precision, PrecisionChoice, Quantised
from studio.recipe.vectors import Vectors
from studio.weights.language_codes import Languages
from studio.weights.trained_weights import TrainedPart

VERSION: Literal[1] = 1

TEACHER_PARAM = "distillation.teacher"
"""The dotted name of the setting that names a teacher, in recipes that have one."""

Outputs = Literal[
    "text", "rewrite", "score", "label", "number", "steps", "entities", "vector", "relevance"
]
"""What a model gives: the next text of a conversation; or, for a text that it reads, another text,
a score, a label, numbers, which of its lines are right, which of its words are entities, a vector,
or how well it matches another text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    message: str
    hint: str
    param: str
    """The dotted name of the setting to change."""


@dataclass(frozen=True, slots=True)
class BeamSearch:
    """How an answer is searched for, by the names of `transformers.GenerationConfig`."""

    num_beams: int = 1
    """Drafts that are followed at a time; 1 always takes the most probable next token."""
    length_penalty: float = 1.0
    """With several beams: above 0 prefers longer answers."""

    @property
    def arguments(self) -> dict[str, Any]:
        """What `generate` and a saved config are given, whatever the base model's config has.

        With one beam, upstream refuses to save settings that only several beams use.
        """
        if self.num_beams == 1:
            return {"num_beams": 1, "length_penalty": None, "early_stopping": None}
        return {
            "num_beams": self.num_beams,
            "length_penalty": self.length_penalty,
            "early_stopping": False,
        }


TeacherFormat = Literal["native", "float32", "bfloat16", "float16"]


@dataclass(frozen=True, slots=True)
class Teacher:
    """A model that another one learns from."""

    name: str
    """Named like a base model; empty if it is still to be chosen."""
    dtype: TeacherFormat
    """The format it is loaded and computes in; `native` is that of most of its saved weights."""


class Recipe(Section):
    """The settings that every training method shares."""

    card_verb: ClassVar[str] = "fine-tuned"
    """What the model card says was done with the base model."""
    card_tags: ClassVar[tuple[str, ...]] = ()
    """Tags of the model card, besides the name of the method."""

    reads_bad_answers: ClassVar[bool] = False
    """Whether answers that are rated bad are read, too."""
    reads_pairs: ClassVar[bool] = False
    """Whether it reads rows as pairs of texts: conversations as questions with their answers."""
    fills_negatives: ClassVar[bool] = False
    """Whether pairs that have fewer texts that do not match get those of other rows."""
    outputs: ClassVar[Outputs] = "text"
    """What a model of this method gives for a prompt. Only `text` can be chatted with."""
    has_expected_answers: ClassVar[bool] = True
    """Whether sample answers can be right or wrong: whether they should equal those of the data."""

    version: Literal[1] = VERSION

    base_model: Annotated[str, Field(min_length=1, max_length=1000), FieldSpec("Base model")]
    """One of your models, a folder on this machine, or a model on the Hugging Face hub."""

    dataset: Annotated[str, Field(min_length=1, max_length=200), FieldSpec("Dataset")]
    """The name of one of your datasets."""

    precision: Annotated[
        PrecisionChoice,
        FieldSpec(
            "Precision", related=("adapter.base_dtype",), choice_titles={AUTO: "Recommended"}
        ),
    ] = AUTO
    """The number format the model computes in; `auto` uses the recommendation for the model and the
    machine that trains it."""

    optimisation: sections.Optimisation = sections.Optimisation()
    adapter: Annotated[adapters.AnyAdapter, Field(discriminator="kind")] = adapters.Lora()
    model: ModelOptions = ModelOptions()
    data: sections.Data = sections.Data()
    evaluation: sections.Evaluation = sections.Evaluation()
    early_stopping: sections.EarlyStopping = sections.EarlyStopping()
    checkpoints: sections.Checkpoints = sections.Checkpoints()
    samples: sections.Samples = sections.Samples()
    numerics: sections.Numerics = sections.Numerics()
    recovery: sections.Recovery = sections.Recovery()
    method: str

    def own_conflicts(self) -> Iterator[Conflict]:
        """Yield settings of the method that cannot be combined; none by default."""
        return iter(())

    @property
    def answers_per_prompt(self) -> int:
        """How many answers a model writes to each row, to learn from them."""
        return 1

    @property
    def answer_tokens(self) -> int:
        """How many tokens such an answer has at most; 0 if the answers are those of the data."""
        return 0

    @property
    def answers_at_once(self) -> int:
        """How many such answers a model writes at a time."""
        return 0

    @property
    def answers_per_round(self) -> int:
        """How many such answers a model writes before it learns from them."""
        return 0

    @property
    def asks_endpoints(self) -> bool:
        """Whether graders ask models behind addresses while it trains."""
        return False

    @property
    def reward_models(self) -> Mapping[str, str]:
        """The reward models that graders ask while it trains, each with the setting that names it.

        They are named `run:` and the number of the run that trained them.
        """
        return {}

    @property
    def keeps_start(self) -> bool:
        """Whether the model as it was before training stays in memory beside it."""
        return False

    @property
    def has_chat_template(self) -> bool:
        """Whether conversations are formatted as the turns of a chat."""
        return str(self.data.chat_template) != "none"

    @property
    def teacher(self) -> Teacher | None:
        """The model that it learns from, besides its data; None for most methods."""
        return None

    def with_model_names(self, rename: Callable[[str], str]) -> Self:
        """Return the recipe with other names of its models."""
        return self.model_copy(update={"base_model": rename(self.base_model)})

    @property
    def pair_prompts(self) -> tuple[str, str]:
        """What is written before the first text of a pair, and before each other one."""
        return "", ""

    @property
    def negatives(self) -> int:
        """How many texts that do not match are read with a pair, if it has as many."""
        return 0

    @property
    def extra_sequences(self) -> int:
        """How many sequences may be read with a row besides those that its method reads of each."""
        return 0

    @property
    def mini_batch(self) -> int | None:
        """The sequences that a step computes at a time; None for all of a batch."""
        return None

    def with_negatives(self, most: int) -> Self:
        """Return the recipe for data whose rows have at most so many negatives."""
        del most
        return self

    @property
    def writes_text(self) -> bool:
        """Whether its models write, so that answers can be sampled."""
        return self.outputs in ("text", "rewrite")

    @property
    def search(self) -> BeamSearch:
        """How its models search for an answer."""
        return BeamSearch()

    @property
    def vectors(self) -> Vectors | None:
        """How its models give vectors; None for all others."""
        return None

    @property
    def images(self) -> ImageOptions | None:
        """How its models read images; None for those that read text alone."""
        return None

    @property
    def languages(self) -> Languages | None:
        """What its models translate from and to; None for all others."""
        return None

    @property
    def keeps_best_model(self) -> bool:
        """Whether the run ends with its best weights."""
        patience = self.early_stopping.early_stopping_patience
        return self.checkpoints.load_best_model_at_end or patience is not None

    @property
    def trained(self) -> TrainedPart:
        """The weights of the model itself that are trained, with the rows of new tokens."""
        part, tokens = self.adapter.trained, self.model.new_token_texts
        return part if part.has_embeddings else replace(part, new_tokens=len(tokens))

    @property
    def packages(self) -> frozenset[str]:
        """The optional packages that the recipe needs."""
        quantised = self.adapter.quantised
        mode = PRECISIONS.get(self.precision)
        needed = {mode.package if mode else "", quantised.package if quantised else ""}
        needed |= {OPTIMIZERS[self.optimisation.optim].package}
        needed |= {ATTENTIONS[self.model.attention].package}
        return frozenset(needed - {""})


Upgrade = Callable[[dict[str, Any]], dict[str, Any]]

UPGRADES: dict[int, Upgrade] = {}
"""Upgrade functions by the version they start from; each upgrades by one version."""


def upgrade(values: dict[str, Any]) -> dict[str, Any]:
    """Upgrade a stored recipe to the current version."""
    for version in range(int(values.get("version", VERSION)), VERSION):
        values = UPGRADES[version](values) | {"version": version + 1}
    return values


def find_conflict(recipe: Recipe) -> Conflict | None:
    """Return the first conflict in a recipe that holds on any machine, or None."""
    return next(_conflicts(recipe), None)


def _conflicts(recipe: Recipe) -> Iterator[Conflict]:
    yield from recipe.own_conflicts()
    yield from _adapter_conflicts(recipe.adapter)
    yield from _model_conflicts(recipe.model, recipe.adapter)
    yield from _optimisation_conflicts(recipe.optimisation, recipe.trained)
    if recipe.precision == AUTO:
        return  # The studio chooses a precision that fits the other settings.
    attention = ATTENTIONS[recipe.model.attention]
    mode, adapter, optim = PRECISIONS[recipe.precision], recipe.adapter, recipe.optimisation.optim
    if mode.is_for_all_weights and isinstance(adapter, adapters.Adapter):
        yield Conflict(
            message=f"{mode.title} sets the format of trained weights; an adapter's are float32.",
            hint="Choose a full fine-tune, or bfloat16 mixed with the frozen model in bfloat16.",
            param="precision",
        )
    if mode.rounding is not None and not OPTIMIZERS[optim].is_adamw:
        yield Conflict(
            message=f"{mode.title} uses its own optimizer, {mode.optimizer}, instead of {optim}.",
            hint="Choose AdamW, or another precision.",
            param="optimisation.optim",
        )
    if attention.is_for_16_bits and mode.compute == "float32":
        yield Conflict(
            message=f"{attention.title} has no kernels for float32, and {mode.title} computes in "
            "it.",
            hint="Choose automatic attention, or a 16-bit precision.",
            param="model.attention",
        )
    if isinstance(adapter, adapters.Adapter) and mode.autocast is None:
        dtype = adapter.base_dtype
        if dtype not in ("native", mode.weights) and adapter.quantised is None:
            yield Conflict(
                message=f"A frozen model in {dtype} computes in {dtype}, not in {mode.compute}.",
                hint="Keep the frozen model as saved, or choose a mixed precision.",
                param="adapter.base_dtype",
            )
    if adapter.quantised is not None:
        yield from _quantised_conflicts(adapter, adapter.quantised, mode)


def _quantised_conflicts(
    adapter: adapters.AnyAdapter, row: Quantised, mode: Precision
) -> Iterator[Conflict]:
    if mode.matmul != mode.compute:
        yield Conflict(
            message=f"{mode.title} changes products of float32 weights, but "
            f"{row.name} weights use their own product kernels.",
            hint="Choose float32, or keep the frozen model as saved.",
            param="precision",
        )
    if adapter.trained.reaches_first_layer and mode.compute != "float32":
        # Their products have the format of what they read.
        yield Conflict(
            message=f"Trained norms and embeddings are float32, so {row.name} weights would "
            f"compute in float32 behind them, not in {mode.compute}.",
            hint="Train only the output layer besides the adapter, choose float32, or keep the "
            "frozen model as saved.",
            param="adapter.extra_modules",
        )


def _adapter_conflicts(adapter: adapters.AnyAdapter) -> Iterator[Conflict]:
    variant, quantised = adapter.lora_variant, adapter.quantised
    if variant is not None and variant.changes_base and quantised is not None:
        yield Conflict(
            message=f"Weights in {quantised.name} would be rounded again, because {variant.title} "
            "takes a part out of each.",
            hint="Choose plain LoRA, or keep the frozen model as saved.",
            param="adapter.variant",
        )
    if variant is not None and variant.corrects_rounding and quantised is None:
        yield Conflict(
            message=f"{variant.title} corrects the rounding of a quantised model, and this one is "
            "not quantised.",
            hint="Choose plain LoRA, or a frozen model in 4 or 8 bits.",
            param="adapter.variant",
        )
    if variant is not None and variant.changes_start and adapter.continue_from is not None:
        yield Conflict(
            message=f"{variant.title} starts a new adapter, so it cannot continue from "
            f"{adapter.continue_from}.",
            hint="Choose plain LoRA.",
            param="adapter.variant",
        )
    if isinstance(adapter, adapters.Ia3) and quantised is not None:
        # Peft computes in float32 behind its factors there, and refuses to take them off again.
        yield Conflict(
            message=f"An IA3 adapter on weights in {quantised.name} would compute in float32, and "
            "could not be merged.",
            hint="Choose a LoRA or OFT adapter, or keep the frozen model as saved.",
            param="adapter.base_dtype",
        )
    if isinstance(adapter, adapters.FullFineTune) and adapter.trained.is_nothing:
        yield Conflict(
            message="With 0 last layers and nothing else, nothing would be trained.",
            hint="Train at least 1 layer, or choose what else to train.",
            param="adapter.trained_layers",
        )


def _model_conflicts(options: ModelOptions, adapter: adapters.AnyAdapter) -> Iterator[Conflict]:
    if options.new_tokens is None or adapter.trained.has_embeddings or adapter.kind == "lora":
        return
    if adapter.kind == "full":
        yield Conflict(
            message="New tokens would stay as they start, because the embeddings are not trained.",
            hint="Train the embeddings, too, or leave the new tokens empty.",
            param="model.new_tokens",
        )
    else:
        yield Conflict(
            message=f"An {adapter.title} cannot train the embeddings of new tokens alone.",
            hint="Choose a LoRA adapter, train the embeddings, too, or leave the new tokens empty.",
            param="model.new_tokens",
        )


def _optimisation_conflicts(
    optimisation: sections.Optimisation, part: TrainedPart
) -> Iterator[Conflict]:
    """Yield settings for weights that are not trained."""
    trains_rows = part.has_embeddings or part.new_tokens > 0
    if optimisation.embedding_learning_rate is not None and not trains_rows:
        yield Conflict(
            message="The embeddings are not trained, so they have no learning rate.",
            hint="Train the embeddings, too, or leave their learning rate empty.",
            param="optimisation.embedding_learning_rate",
        )
    if OPTIMIZERS[optimisation.optim].is_for_matrices and part.last_layers == 0:
        yield Conflict(
            message="Muon updates the matrices of the model's layers, and none of them is trained.",
            hint="Use AdamW, or train layers in a full fine-tune.",
            param="optimisation.optim",
        )


def unusable_values(recipe: Recipe) -> Iterator[Conflict]:
    """Yield values outside their usable range, or without effect unless another is set.

    They are rejected on submission. A setting's type also validates stored recipes, so a bound
    added there would make them unreadable.
    """
    yield from _out_of_range(recipe, "")
    stopping = recipe.early_stopping
    if stopping.early_stopping_threshold and stopping.early_stopping_patience is None:
        yield Conflict(
            message="The min improvement has no effect without patience.",
            hint="Also set the patience of early stopping, or leave the min improvement at 0.",
            param="early_stopping.early_stopping_patience",
        )
    adapter = recipe.adapter
    if adapter.kind == "full" and adapter.trained_layers is None and adapter.also_trained != "none":
        yield Conflict(
            message="Every weight is trained already.",
            hint="Also set the last layers to train, or train nothing else.",
            param="adapter.also_trained",
        )


def _out_of_range(section: Section, prefix: str) -> Iterator[Conflict]:
    for name, info in type(section).model_fields.items():
        value, spec = getattr(section, name), field_spec(info)
        if isinstance(value, Section):
            yield from _out_of_range(value, f"{prefix}{name}.")
        elif spec and spec.usable_range and value is not None:
            low, high = spec.usable_range
            if not low <= value <= high:
                yield Conflict(
                    message=f"{spec.label} must be between {low:g} and {high:,.12g}.",
                    hint="",
                    param=f"{prefix}{name}",
                )
