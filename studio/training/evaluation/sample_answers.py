"""Generate answers to fixed validation prompts, so that users can read what training changed."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TrainerCallback,
    TrainerControl,
    TrainerState,
)
from transformers.pytorch_utils import Conv1D

from studio.intake.row_formats.image_marks import mark_images
from studio.intake.row_formats.tasks import reference_text
from studio.intake.rows.validation_rows import split_text
from studio.protocols.events import Sampled, SampleStage
from studio.recipe.base import BeamSearch
from studio.training.data import prompt_answer
from studio.training.data.chat_templates import ChatTemplate
from studio.training.data.image_messages import RowImage, images_of
from studio.training.data.image_prompts import repeat_images
from studio.training.data.rows import Message, TrainingRow, is_trained_on
from studio.training.evaluation.image_files import ImageFiles
from studio.training.models import heads, quantised_weights
from studio.training.models.eval_context import evaluation_mode
from studio.training.monitoring.reporter import Throughput
from studio.weights import image_text

_BATCH_SIZE = 8
_GREEDY = BeamSearch().arguments


@dataclass(frozen=True, slots=True)
class SamplePrompt:
    """A prompt for the model to continue."""

    ids: list[int]
    prompt: str
    """The prompt as readable text."""
    reference: str
    """The row's own continuation; empty for a preference, whose better answer is one of many."""
    images: Sequence[RowImage] = ()
    """Those that its tokens have places for."""


@dataclass(frozen=True, slots=True)
class GeneratedAnswer:
    """What a model wrote."""

    text: str
    tokens: int
    """How many tokens it wrote, with the one that ends the answer."""
    is_cut_off: bool
    """Whether it had not come to an end after the maximum number of tokens."""


class AnswerSampler:
    """Generates answers without chance, so that only the weights make a difference."""

    def __init__(  # noqa: PLR0913 -- what differs between methods
        self,
        rows: Sequence[TrainingRow],
        template: ChatTemplate | None,
        tokenizer: PreTrainedTokenizerBase,
        max_new_tokens: int,
        *,
        has_expected: bool = True,
        max_length: int | None = None,
        arguments: Mapping[str, Any] = _GREEDY,
        images: ImageFiles | None = None,
    ) -> None:
        """Prepare the prompts of rows; `max_length` truncates those without a chat template.

        `arguments` are those of `generate` that the method decides, and `images` are needed for
        rows that have some.
        """
        prompts = [_build_prompt(row, template, tokenizer, max_length) for row in rows]
        if not has_expected:
            prompts = [replace(prompt, reference="") for prompt in prompts]
        self.prompts = prompts
        self._tokenizer = tokenizer
        self._max_new_tokens = max_new_tokens
        self._arguments = arguments
        self._images = images
        self._stop_tokens = template.stop_tokens if template else [tokenizer.eos_token_id]

    def generate(self, model: PreTrainedModel, stage: SampleStage, step: int) -> Iterator[Sampled]:
        """Yield one answer per prompt, in the prompts' order."""
        with record_compute_formats(model) as formats:
            answers = self.write(model)
        for i, (prompt, answer) in enumerate(zip(self.prompts, answers, strict=True)):
            yield Sampled(
                stage=stage,
                step=step,
                position=i,
                prompt=prompt.prompt,
                reference=prompt.reference,
                answer=answer.strip(),
                computed_in=" and ".join(sorted(formats)),
            )

    def write(self, model: PreTrainedModel) -> list[str]:
        """Return the model's answer to each prompt."""
        batches = self.generate_batches(model, range(len(self.prompts)))
        return [answer.text for _positions, answers in batches for answer in answers]

    def generate_batches(
        self, model: PreTrainedModel, positions: Sequence[int]
    ) -> Iterator[tuple[Sequence[int], list[GeneratedAnswer]]]:
        """Yield the answers to the prompts at these positions, one batch after the other."""
        size = self._batch_size(model)
        for start in range(0, len(positions), size):
            chunk = positions[start : start + size]
            written = self._generate(model, [self.prompts[position] for position in chunk])
            yield chunk, [self._read_answer(ids) for ids in written]

    def _read_answer(self, ids: list[int]) -> GeneratedAnswer:
        ends = (i for i, token in enumerate(ids, 1) if token in self._stop_tokens)
        end = next(ends, None)
        return GeneratedAnswer(
            text=self._tokenizer.decode(ids, skip_special_tokens=True),
            tokens=end or len(ids),
            is_cut_off=end is None,
        )

    def _batch_size(self, model: PreTrainedModel) -> int:
        # Recurrent models read padding as text, so they get batches of one row.
        return 1 if model._is_stateful else _BATCH_SIZE  # noqa: SLF001 -- upstream has no other word

    def _generate(self, model: PreTrainedModel, prompts: list[SamplePrompt]) -> list[list[int]]:
        reads_first = heads.is_encoder_decoder(model.config)
        # An answer follows its prompt, unless the model reads that in another half.
        inputs = self._tokenizer.pad(
            {"input_ids": [prompt.ids for prompt in prompts]},
            padding_side="right" if reads_first else "left",
            return_tensors="pt",
        ).to(model.device)
        context = getattr(model.config, "max_position_embeddings", None)
        most = self._max_new_tokens
        if reads_first and context is not None:
            most = min(most, context - 1)
        seen = self._read_images(prompts, inputs["input_ids"], model)
        with evaluation_mode(model):
            written = model.generate(
                **inputs,
                **seen,
                do_sample=False,
                max_new_tokens=most,
                eos_token_id=self._stop_tokens,
                pad_token_id=self._tokenizer.pad_token_id,
                use_cache=True,
                **self._arguments,
            )
        new = written if reads_first else written[:, inputs["input_ids"].shape[1] :]
        ids: list[list[int]] = new.tolist()
        return ids

    def _read_images(
        self, prompts: Sequence[SamplePrompt], ids: Tensor, model: PreTrainedModel
    ) -> dict[str, Tensor]:
        found = [image for prompt in prompts for image in prompt.images]
        return self._images.read(found, ids, model) if self._images and found else {}


@contextmanager
def record_compute_formats(model: nn.Module) -> Iterator[set[str]]:
    """Record the formats the model computes in, as measured at its first linear layer.

    Those that read images do not count.
    """
    formats: set[str] = set()

    def record_format(layer: nn.Module, _inputs: object, output: Tensor) -> None:
        weight: Any = layer.weight
        stored = (
            f" ({quantised_weights.format_name(weight)})"
            if quantised_weights.is_quantised(weight)
            else ""
        )
        formats.add(f"{str(output.dtype).removeprefix('torch.')}{stored}")

    family = getattr(getattr(model, "config", None), "model_type", "")
    layers = (
        module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | Conv1D) and image_text.part_of(name, family) is None
    )
    hook = next(layers).register_forward_hook(record_format)
    try:
        yield formats
    finally:
        hook.remove()


def _build_prompt(
    row: TrainingRow,
    template: ChatTemplate | None,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int | None,
) -> SamplePrompt:
    if row.text is not None:
        return _split_text(row.text, tokenizer)
    if template is None:
        prompt, answer = prompt_answer.split_row(row)
        ids = prompt_answer.prompt_ids(prompt, tokenizer, max_length)
        return SamplePrompt(ids, prompt, answer)
    before, reference = _split_answer(row)
    text = template.render_prompt(before, row.tools)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    ids = repeat_images(ids, replace(row, messages=before), tokenizer)
    return SamplePrompt(ids, _format_messages(before), reference, images_of(before))


def prompt_text(row: TrainingRow) -> str:
    """Return what a model is asked to continue, as readable text."""
    return (
        split_text(row.text)[0] if row.text is not None else _format_messages(_split_answer(row)[0])
    )


def _split_answer(row: TrainingRow) -> tuple[Sequence[Message], str]:
    """Return the turns before the last answer, and what it says; of a task, all turns."""
    if row.is_task:
        return row.messages, reference_text(row.item)
    last = max(i for i, turn in enumerate(row.messages) if is_trained_on(turn))
    return row.messages[:last], _message_text(row.messages[last])


def _split_text(text: str, tokenizer: PreTrainedTokenizerBase) -> SamplePrompt:
    """Use the first part of a text as the prompt."""
    prompt, rest = split_text(text)
    ids = tokenizer(prompt)["input_ids"]
    if len(ids) > 1 and ids[-1] == tokenizer.eos_token_id:
        ids.pop()  # Some tokenizers end every text.
    return SamplePrompt(ids, prompt, rest)


def _format_messages(messages: Sequence[Message]) -> str:
    if len(messages) == 1:
        return _message_text(messages[0])
    return "\n".join(f"{message['role']}: {_message_text(message)}" for message in messages)


def _message_text(message: Message) -> str:
    calls = message.get("tool_calls") or ()
    call_texts = [json.dumps(call["function"], ensure_ascii=False) for call in calls]
    return "\n".join(part for part in (mark_images(message), *call_texts) if part)


class SampleCallback(TrainerCallback):  # type: ignore[misc] # upstream is untyped
    """Generates answers a few times, spread evenly over the run.

    Whether a validation is one of them depends only on its step, so a run that resumes from a
    checkpoint answers at the same steps.
    """

    def __init__(self, times: int, answer: Callable[[], object], throughput: Throughput) -> None:
        self._times = times
        self._answer = answer
        self._throughput = throughput

    def on_evaluate(
        self, _args: object, state: TrainerState, control: TrainerControl, **_rest: object
    ) -> None:
        if control.should_training_stop or state.global_step >= state.max_steps:
            return  # The answers after training follow now.
        if is_due(state.global_step, state.max_steps, state.eval_steps, self._times):
            self._answer()
            self._throughput.resume()


def is_due(step: int, steps: int, eval_steps: int, times: int) -> bool:
    """Whether this validation is the first at or after one of `times` even parts of the run.

    `eval_steps` is the number of steps between two validations.
    """
    return (
        step > 0 and step * (times + 1) // steps > max(step - eval_steps, 0) * (times + 1) // steps
    )
