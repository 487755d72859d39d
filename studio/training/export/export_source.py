"""The run whose model is exported, with the rows that measure it."""

import sys
from dataclasses import dataclass

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from studio.protocols.run_dir import JobSpec, RunDir
from studio.recipe.base import Recipe
from studio.training import job, model_card
from studio.training.data import chat_templates, image_messages
from studio.training.data.image_batches import ImageCollator
from studio.training.data.tokenisation import Examples
from studio.training.evaluation.sample_answers import AnswerSampler, prompt_text
from studio.training.models import loader, processors, tokenizers
from studio.weights.architectures import WRITING_KINDS

_ANSWER_TOKENS = 64
"""Most tokens of the answer that the report shows."""


@dataclass(frozen=True, slots=True)
class ExportSource:
    """The run whose model is exported."""

    run: RunDir
    recipe: Recipe
    job: JobSpec
    base: str
    """The base model's public name."""
    tokenizer: PreTrainedTokenizerBase
    examples: Examples | None
    """The measured rows: for validation, else for training. None if the dataset is gone."""
    collator: ImageCollator | None
    """Makes batches of rows with images; None for a model that reads text alone."""

    def answer(self, model: PreTrainedModel) -> str:
        """Let a model answer the first row; "" if it does not continue a text, or has no room."""
        recipe = self.recipe
        if self.examples is None or recipe.images is not None or recipe.outputs != "text":
            return ""
        row = self.examples.rows[0]
        has_template = row.text is None and recipe.has_chat_template
        template = chat_templates.load(self.tokenizer) if has_template else None
        sampler = AnswerSampler([row], template, self.tokenizer, _ANSWER_TOKENS)
        context = getattr(model.config, "max_position_embeddings", None) or sys.maxsize
        has_room = len(sampler.prompts[0].ids) + _ANSWER_TOKENS <= context
        return sampler.write(model)[0].strip() if has_room else ""

    @property
    def measured_part(self) -> str:
        """Which rows are measured: those for training, if the run has no others."""
        has_others = self.job.validation is not None or self.recipe.data.validation_share > 0
        return "validation" if has_others else "training"

    @property
    def prompt(self) -> str:
        """The text of the prompt that is answered; "" if there is none."""
        return "" if self.examples is None else prompt_text(self.examples.rows[0])


def read(run: RunDir, recipe: Recipe) -> ExportSource:
    """Read what is known of a run whose model is exported."""
    job_spec = JobSpec.read(run)
    tokenizer = tokenizers.load(str(run.artifacts))
    # Before the rows are tokenised: it tells the tokenizer how many tokens an image is.
    collator = _image_collator(run, recipe, job_spec, tokenizer)
    examples = _measured_examples(recipe, job_spec, tokenizer)
    base = model_card.base_name(recipe.base_model, job_spec.model)
    return ExportSource(run, recipe, job_spec, base, tokenizer, examples, collator)


def _image_collator(
    run: RunDir, recipe: Recipe, spec: JobSpec, tokenizer: PreTrainedTokenizerBase
) -> ImageCollator | None:
    if recipe.images is None:
        return None
    config = loader.load_config(spec.model, spec.code, kinds=WRITING_KINDS)
    limit = recipe.images.max_pixels
    reader = processors.load(str(run.artifacts), config, tokenizer, limit, offline=True)
    return ImageCollator(tokenizer.pad_token_id, reader, image_messages.folder_of(spec.train))


def _measured_examples(
    recipe: Recipe, spec: JobSpec, tokenizer: PreTrainedTokenizerBase
) -> Examples | None:
    if not recipe.writes_text:
        return None
    try:
        examples = job.tokenise_measured(recipe, spec, tokenizer)
    except FileNotFoundError:
        print("The dataset is gone, so perplexity cannot be measured.", flush=True)  # noqa: T201 -- the export's own log
        return None
    return examples if examples.rows else None
