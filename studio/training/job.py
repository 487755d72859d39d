"""Prepare everything a method's trainer is built from: model, tokenizer and data."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from peft import PeftConfig
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from studio import hardware
from studio.errors import TrainingError
from studio.protocols.run_dir import JobSpec, RunDir
from studio.recipe.adapters import AnyAdapter, FullFineTune, Lora
from studio.recipe.attention import ATTENTIONS
from studio.recipe.base import Recipe, find_conflict
from studio.recipe.lora_variants import LoraVariant
from studio.recipe.offloading import OFFLOADING
from studio.recipe.optimizers import OPTIMIZERS
from studio.recipe.precision import PRECISIONS, Precision
from studio.recipe.sections import Optimisation
from studio.training import model_card
from studio.training.data import (
    chat_templates,
    image_batches,
    packed_dataset,
    prompt_answer_batches,
    template_process,
    text_pairs,
    tokenisation,
)
from studio.training.data.rows import TrainingRow, read_rows, split_rows
from studio.training.data.tokenisation import Examples, TokenCache, cache_key
from studio.training.memory.process_memory import MemoryProbe
from studio.training.models import (
    heads,
    languages,
    loader,
    new_tokens,
    positions,
    processors,
    teachers,
    tokenizers,
    trained_weights,
    vision_parts,
    weight_formats,
)
from studio.training.precision import float8, format_audit
from studio.training.reward_models import RewardModel
from studio.weights import encoders
from studio.weights.architectures import ModelKind

LoadModel = Callable[..., PreTrainedModel]
"""Same signature as `loader.load_model`."""
Tokenise = Callable[
    [Sequence[TrainingRow], chat_templates.ChatTemplate | None, PreTrainedTokenizerBase, int],
    Examples,
]
"""Same signature as `tokenisation.tokenise`: a method may read rows in its own way."""
ChooseHead = Callable[[Sequence[TrainingRow]], heads.Head]
"""Takes all rows, and returns what the model ends in instead of tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingJob:
    run_dir: RunDir
    spec: JobSpec
    base: str
    """The base model's public name, without local folders."""
    mode: Precision
    plan: format_audit.NumberFormats
    """The formats expected before anything is loaded."""
    has_mixed_formats: bool
    """Whether the model's weights are in several formats, which requires autocast."""
    rounding: dict[str, Any] | None
    """What loading the model rounds; None if every weight stays as it was saved."""
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    teacher: PreTrainedModel | None
    """The frozen model to learn from, besides the data."""
    reward_models: Mapping[str, RewardModel] = field(default_factory=dict)
    """The frozen models that score answers, by their names in graders."""
    adapter: PeftConfig | None
    trained: AnyAdapter
    """What the recipe trains."""
    optimisation: Optimisation
    template: chat_templates.ChatTemplate | None
    """None if there is only text."""
    images: processors.ImageReader | None
    """What reads the images of the data; None if the model reads text alone."""
    train: Examples
    validation: Examples
    memory_probe: MemoryProbe
    generation: dict[str, Any]
    """What `generate` and a saved config are given: how to search for answers, in which language.
    """
    head: str
    """What its head is, in words; empty if it gives tokens."""
    vocabulary: int
    """Rows of the base model's table of tokens, before any were added."""
    changes_config: bool
    """Whether the base model's own config does not describe the model: it got a head for scores,
    or its positions were stretched."""

    @classmethod
    def prepare(  # noqa: PLR0913 -- what differs between methods
        cls,
        recipe: Recipe,
        run: RunDir,
        enter: Callable[[str], None],
        load: LoadModel = loader.load_model,
        tokenise: Tokenise = tokenisation.tokenise,
        choose_head: ChooseHead | None = None,
        *,
        kinds: frozenset[ModelKind] = frozenset({"causal"}),
    ) -> "TrainingJob":
        """Load and tokenise what the recipe names; `enter` is called with each phase."""
        _refuse_conflicts(recipe)
        adapter, mode, spec = recipe.adapter, PRECISIONS[recipe.precision], JobSpec.read(run)
        enter("loading")
        tokenizer, pieces = _load_tokenizer(recipe, spec, run)
        rows = read_rows_of_run(recipe, spec)
        config, has_head = _load_config(recipe, spec, _head(choose_head, rows), tokenizer, kinds)
        generation = _choose_generation(recipe, tokenizer, config)
        formats = weight_formats.choose_formats(spec.model, config, mode, adapter, spec.code)
        probe = MemoryProbe()
        model = load(spec.model, config, formats.main, adapter.quantised, spec.code, formats.own)
        vocabulary = _prepare_weights(model, tokenizer, pieces, recipe, has_head=has_head)
        enter("tokenising")
        template, images, limited = _plan_reading(rows, recipe, spec, config, tokenizer)
        train, validation = _tokenise_parts(rows, limited, spec, template, tokenizer, tokenise)
        return cls(
            run_dir=run,
            spec=spec,
            base=model_card.base_name(recipe.base_model, spec.model),
            mode=mode,
            plan=format_audit.plan_formats(recipe, formats, config),
            has_mixed_formats=bool(formats.own),
            rounding=weight_formats.measure_rounding(spec.model, formats.main, mode, adapter),
            model=model,
            tokenizer=tokenizer,
            teacher=_load_teacher(recipe, spec, tokenizer, load),
            adapter=loader.adapter_config(adapter, model, [*pieces]),
            trained=adapter,
            optimisation=recipe.optimisation,
            template=template,
            images=images,
            train=train,
            validation=validation,
            memory_probe=probe,
            generation=generation,
            head=heads.describe(config, has_head=has_head),
            vocabulary=vocabulary,
            changes_config=not heads.writes_text(config) or recipe.model.rope_type != "none",
        )

    @property
    def keeps_head(self) -> bool:
        """Whether it continues the head that the base model was saved with."""
        return self.head == heads.KEPT

    @property
    def variant(self) -> LoraVariant | None:
        """The variant of its adapter; None in a full fine-tune."""
        return self.trained.lora_variant

    @property
    def lr_ratio(self) -> float:
        """How many times the learning rate an adapter's second matrices use."""
        return self.trained.lr_ratio if isinstance(self.trained, Lora) else 1.0

    @property
    def changes_base(self) -> bool:
        """Whether the adapter starts as a part of the base model's weights."""
        return self.variant is not None and self.variant.changes_base

    def answer_autocast(self, device: torch.device) -> AbstractContextManager[object]:
        """Return the context to generate in: weights in several formats need autocast."""
        if not self.has_mixed_formats:
            return nullcontext()
        return torch.autocast(device.type, dtype=getattr(torch, self.mode.compute))

    @property
    def stop_tokens(self) -> list[int]:
        """The tokens that end an answer."""
        return self.template.stop_tokens if self.template else [self.tokenizer.eos_token_id]


TrainValidationRows = tuple[list[TrainingRow], list[TrainingRow]]
"""Training rows and validation rows."""


_MEASURED_TRAINING_ROWS = 200
"""How many training rows are measured if there are none for validation."""


def tokenise_measured(
    recipe: Recipe, spec: JobSpec, tokenizer: PreTrainedTokenizerBase
) -> Examples:
    """Tokenise the validation rows, else some training rows, exactly as the run does."""
    rows = read_rows_of_run(recipe, spec)
    has_template = recipe.has_chat_template and _has_conversations(rows)
    template = chat_templates.load(tokenizer) if has_template else None
    tokenise = tokenisation.tokenise if recipe.has_chat_template else prompt_answer_batches.tokenise
    if recipe.images is not None:
        tokenise = image_batches.tokenise
    measured = rows[1] or rows[0][:_MEASURED_TRAINING_ROWS]
    return tokenise(measured, template, tokenizer, recipe.data.max_length)


def _prepare_weights(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    pieces: new_tokens.Pieces,
    recipe: Recipe,
    *,
    has_head: bool,
) -> int:
    """Make a loaded model ready to train. Return how many rows its table of tokens had."""
    vocabulary, mode = new_tokens.extend(model, tokenizer, pieces), PRECISIONS[recipe.precision]
    heads.initialise(model, recipe.optimisation.seed, has_head=has_head)
    if mode.is_float8:
        float8.convert_linear_layers(model, mode)
    if isinstance(recipe.adapter, FullFineTune):
        trained_weights.freeze_rest(model, recipe.adapter.trained)
    if recipe.images is not None:
        vision_parts.freeze(model, recipe.images)
    return vocabulary


def _plan_reading(
    rows: TrainValidationRows,
    recipe: Recipe,
    spec: JobSpec,
    config: PreTrainedConfig,
    tokenizer: PreTrainedTokenizerBase,
) -> tuple[chat_templates.ChatTemplate | None, processors.ImageReader | None, Recipe]:
    """Return what reads turns and images, and the recipe with a length that the model can read."""
    template = _make_template(rows, recipe, config, tokenizer)
    images = _load_images(recipe, spec, config, tokenizer)
    return template, images, _limit_length(recipe, config)


def _load_images(
    recipe: Recipe,
    spec: JobSpec,
    config: PreTrainedConfig,
    tokenizer: PreTrainedTokenizerBase,
) -> processors.ImageReader | None:
    """Load what reads images, and tell the tokenizer how large these may be."""
    if recipe.images is None:
        return None
    return processors.load(spec.model, config, tokenizer, recipe.images.max_pixels)


def _load_teacher(
    recipe: Recipe, spec: JobSpec, tokenizer: PreTrainedTokenizerBase, load: LoadModel
) -> PreTrainedModel | None:
    return teachers.load(recipe.teacher, spec, tokenizer, load) if recipe.teacher else None


def _choose_generation(
    recipe: Recipe, tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig
) -> dict[str, Any]:
    """Set the tokenizer's languages before it reads any text; return what `generate` is given."""
    spoken = languages.choose(tokenizer, config.model_type, recipe.languages)
    return recipe.search.arguments | spoken


def _refuse_conflicts(recipe: Recipe) -> None:
    if conflict := find_conflict(recipe):
        raise TrainingError("conflict", conflict.message, hint=conflict.hint)
    _require_support(recipe)


def _head(choose_head: ChooseHead | None, rows: TrainValidationRows) -> heads.Head | None:
    """Return what the model ends in instead of tokens; None if it gives tokens."""
    return choose_head and choose_head([*rows[0], *rows[1]])


def _load_config(
    recipe: Recipe,
    spec: JobSpec,
    head: heads.Head | None,
    tokenizer: PreTrainedTokenizerBase,
    kinds: frozenset[ModelKind],
) -> tuple[PreTrainedConfig, bool]:
    """Read the base model's config, and give it the head and what the recipe changes of it.

    Also return whether the base model has that head already.
    """
    config = loader.load_config(spec.model, spec.code, kinds)
    has_head = head is not None and heads.attach(config, head, tokenizer.pad_token_id)
    loader.choose_attention(config, recipe.model.attention)
    if recipe.optimisation.activation_checkpointing:
        loader.refuse_checkpointing(config)
    positions.stretch(config, recipe.model.rope_type, recipe.model.rope_factor)
    return config, has_head


def _load_tokenizer(
    recipe: Recipe, spec: JobSpec, run: RunDir
) -> tuple[PreTrainedTokenizerBase, new_tokens.Pieces]:
    """Load the base model's tokenizer, and add the recipe's new tokens to it.

    It is kept then, for checkpoints that answer before the run has saved its model.
    """
    tokenizer = tokenizers.load(spec.model, spec.code)
    pieces = new_tokens.add(tokenizer, recipe.model.new_token_texts)
    if pieces:
        tokenizer.save_pretrained(run.tokenizer)
    return tokenizer, pieces


def _make_template(
    rows: TrainValidationRows,
    recipe: Recipe,
    config: PreTrainedConfig,
    tokenizer: PreTrainedTokenizerBase,
) -> chat_templates.ChatTemplate | None:
    """Return the chat template of the recipe; None if there is only text, or for an encoder."""
    has_turns = recipe.has_chat_template and _has_conversations(rows)
    if not has_turns or heads.encoder_of(config) is not None:
        return None
    chat_templates.set_chat_template(tokenizer, recipe.data.chat_template)
    return chat_templates.load(tokenizer)


def _require_support(recipe: Recipe) -> None:
    """Refuse what this machine lacks; the web may run on another."""
    rows = {
        "Keep the frozen model in its saved format.": recipe.adapter.quantised,
        "Use AdamW.": OPTIMIZERS[recipe.optimisation.optim],
        "Choose automatic attention.": ATTENTIONS[recipe.model.attention],
        "Turn off activation offloading.": OFFLOADING
        if recipe.optimisation.activation_offloading
        else None,
    }
    for hint, row in rows.items():
        if row is not None and (lack := row.unsupported_reason(hardware.detect())):
            message = f"{row.title} cannot be used here: it {lack}."
            raise TrainingError("conflict", message, hint=hint)


def read_rows_of_run(recipe: Recipe, spec: JobSpec) -> TrainValidationRows:
    """Read the rows of both parts, as pairs of texts if the method reads these.

    Conversations need the process of their chat template: it starts while the model is loaded.
    """
    train, validation = _read_parts(recipe, spec)
    if recipe.has_chat_template and _has_conversations((train, validation)):
        template_process.start_early()
    if not recipe.reads_pairs:
        return train, validation
    return text_pairs.adapt_rows(recipe, train), text_pairs.adapt_rows(recipe, validation)


def _read_parts(recipe: Recipe, spec: JobSpec) -> TrainValidationRows:
    rows = read_rows(spec.train, with_bad=recipe.reads_bad_answers)
    if spec.validation is not None:
        return rows, read_rows(spec.validation, "validation", with_bad=recipe.reads_bad_answers)
    return split_rows(rows, recipe.data.validation_share, recipe.optimisation.seed)


def _has_conversations(parts: TrainValidationRows) -> bool:
    return any(row.text is None for part in parts for row in part)


def _limit_length(recipe: Recipe, config: PreTrainedConfig) -> Recipe:
    """Return the recipe with texts no longer than an encoder has positions for."""
    limit = encoders.max_tokens(config.to_dict())
    if limit is None or limit >= recipe.data.max_length:
        return recipe
    message = f"texts are truncated to {limit:,} tokens: this model has no positions for more"
    print(message, flush=True)  # noqa: T201 -- the run's own log
    data = recipe.data.model_copy(update={"max_length": limit})
    return recipe.model_copy(update={"data": data})


def _tokenise_parts(
    parts: TrainValidationRows,
    recipe: Recipe,
    spec: JobSpec,
    template: chat_templates.ChatTemplate | None,
    tokenizer: PreTrainedTokenizerBase,
    tokenise: Tokenise,
) -> tuple[Examples, Examples]:
    length = recipe.data.max_length
    kind = f"{tokenise.__module__}.{tokenise.__qualname__}"

    def tokenised(rows: list[TrainingRow], part: str) -> Examples:
        def make() -> Examples:
            examples = tokenise(rows, template, tokenizer, length)
            tokenisation.refuse_empty(examples, part, length)
            return examples

        if spec.cache is None:
            return make()
        key = cache_key(rows, tokenizer, length, kind)
        return TokenCache(spec.cache).get_or_make(key, rows, make)

    train = tokenised(parts[0], "training")
    validation = tokenised(parts[1], "validation")
    # Validation rows are never packed, so that packed and unpacked runs can be compared.
    return packed_dataset.pack_examples(train, length) if recipe.data.packing else train, validation
