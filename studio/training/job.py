"""What a method's trainer is built from: loaded, tokenised, and ready."""

from collections.abc import Callable
from dataclasses import dataclass

from peft import LoraConfig
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from studio import hardware
from studio.errors import TrainingError
from studio.recipe.base import Recipe
from studio.recipe.conflicts import conflict
from studio.recipe.precision import PRECISIONS, Precision
from studio.rundir import JobSpec, RunDir
from studio.training import audit, card, data, float8, models, templates
from studio.training.cache import Cache, key_of
from studio.training.data import Conversation, Examples
from studio.training.memory import Gauge


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    dir: RunDir
    spec: JobSpec
    base: str
    """What the base model is called where this machine's folders mean nothing."""
    mode: Precision
    plan: audit.Numbers
    """What must be, said before anything is loaded."""
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    adapter: LoraConfig | None
    template: templates.Template
    train: Examples
    validation: Examples
    gauge: Gauge

    @classmethod
    def prepare(cls, recipe: Recipe, run: RunDir, enter: Callable[[str], None]) -> "Job":
        """Load and tokenise what the recipe names, saying which phase is entered."""
        spec = JobSpec.model_validate_json(run.job.read_text(encoding="utf-8"))
        if found := conflict(recipe):
            raise TrainingError("conflict", found.message, hint=found.hint)
        row = recipe.adapter.quantised
        if row is not None and (lack := row.refusal(hardware.detect())):
            raise TrainingError(
                "conflict", f"{row.title} {lack}.", hint="Keep the frozen model as it was saved."
            )
        mode = PRECISIONS[recipe.precision]
        enter("loading")
        tokenizer = models.load_tokenizer(spec.model)
        config = models.load_config(spec.model)
        weights = models.weights_format(config, mode, recipe.adapter)
        planned = audit.plan(recipe, weights, config)
        gauge = Gauge()
        model = models.load_model(spec.model, config, weights, row)
        if mode.is_float8:
            float8.convert(model, mode)
        enter("tokenising")
        templates.install(tokenizer, recipe.data.chat_template)
        template = templates.Template(tokenizer)
        train, validation = _examples(recipe, spec, template, tokenizer)
        return cls(
            dir=run,
            spec=spec,
            base=card.base_name(recipe.base_model, spec.model),
            mode=mode,
            plan=planned,
            model=model,
            tokenizer=tokenizer,
            adapter=models.adapter_config(recipe.adapter, config.model_type),
            template=template,
            train=train,
            validation=validation,
            gauge=gauge,
        )


def validation(
    recipe: Recipe,
    spec: JobSpec,
    template: templates.Template,
    tokenizer: PreTrainedTokenizerBase,
) -> Examples:
    """Tokenise the rows that a run is measured by, as the run itself does."""
    return data.tokenise(_rows(recipe, spec)[1], template, tokenizer, recipe.data.max_length)


def _rows(recipe: Recipe, spec: JobSpec) -> tuple[list[Conversation], list[Conversation]]:
    rows = data.read(spec.train)
    if spec.validation is not None:
        return rows, data.read(spec.validation)
    return data.split(rows, recipe.data.validation_share, recipe.optimisation.seed)


def _examples(
    recipe: Recipe,
    spec: JobSpec,
    template: templates.Template,
    tokenizer: PreTrainedTokenizerBase,
) -> tuple[Examples, Examples]:
    train_rows, validation_rows = _rows(recipe, spec)
    length = recipe.data.max_length

    def tokenised(rows: list[data.Conversation]) -> Examples:
        def make() -> Examples:
            return data.tokenise(rows, template, tokenizer, length)

        if spec.cache is None:
            return make()
        return Cache(spec.cache).examples(key_of(rows, tokenizer, length), rows, make)

    train = tokenised(train_rows)
    data.refuse_empty(train, "training", length)
    validation = tokenised(validation_rows)
    data.refuse_empty(validation, "validation", length)
    return train, validation
