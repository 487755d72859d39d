"""Answer rows that a model was not trained on, and measure how it expects their references."""

from collections.abc import Iterator, Sequence
from typing import Literal

from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from studio.protocols.evaluation import EvaluationJob, RowResult
from studio.training.data import image_batches, prompt_answer_batches, tokenisation
from studio.training.data.chat_templates import ChatTemplate
from studio.training.data.labels import IGNORE_INDEX, cut_after_last_answer
from studio.training.data.rows import TrainingRow, chosen_answer, is_trained_on, rated_answer
from studio.training.data.tokenisation import row_tensors
from studio.training.evaluation import perplexity
from studio.training.evaluation.image_files import ImageFiles
from studio.training.evaluation.sample_answers import AnswerSampler, record_compute_formats


class RowEvaluator:
    """Answers rows by greedy decoding, so that the same weights give the same answers."""

    def __init__(
        self,
        rows: Sequence[TrainingRow],
        template: ChatTemplate | None,
        tokenizer: PreTrainedTokenizerBase,
        job: EvaluationJob,
        *,
        reads_first: bool,
        images: ImageFiles | None = None,
    ) -> None:
        """Prepare the rows; `reads_first` if one half of the model reads the prompt.

        `images` are needed for rows that have some.
        """
        self._rows = [_last_answer(row) for row in rows if _can_be_asked(row)]
        self._tokenizer = tokenizer
        self._sampler = AnswerSampler(
            self._rows,
            template,
            tokenizer,
            job.max_new_tokens,
            has_expected=job.has_expected,
            max_length=job.max_length,
            images=images,
        )
        self._images = images
        tokenise = prompt_answer_batches.tokenise if reads_first else tokenisation.tokenise
        if images is not None:
            tokenise = image_batches.tokenise
        self._examples = tokenise(self._rows, template, tokenizer, job.max_length)

    @property
    def count(self) -> int:
        """The number of rows that have an answer, or are tasks."""
        return len(self._rows)

    def results(self, model: PreTrainedModel, skip: frozenset[int]) -> Iterator[list[RowResult]]:
        """Yield the results of rows whose positions are not in `skip`, batch by batch.

        Prompts of like length are answered together.
        """
        prompts = self._sampler.prompts
        positions = [position for position in range(len(prompts)) if position not in skip]
        positions.sort(key=lambda position: len(prompts[position].ids))
        losses = self._losses(model, positions)
        with record_compute_formats(model) as formats:
            for chunk, answers in self._sampler.generate_batches(model, positions):
                computed_in = " and ".join(sorted(formats))
                yield [
                    RowResult(
                        position=position,
                        number=self._rows[position].number,
                        prompt=prompts[position].prompt,
                        reference=prompts[position].reference,
                        answer=answer.text.strip(),
                        reason=_reason(is_cut_off=answer.is_cut_off),
                        tokens=answer.tokens,
                        nll=losses.get(position, (None, 0))[0],
                        nll_tokens=losses.get(position, (None, 0))[1],
                        computed_in=computed_in,
                    )
                    for position, answer in zip(chunk, answers, strict=True)
                ]

    def _losses(
        self, model: PreTrainedModel, positions: Sequence[int]
    ) -> dict[int, tuple[float, int]]:
        """Return the loss of each reference, and over how many tokens, by position.

        Rows of which truncation leaves no answer have none.
        """
        wanted = set(positions)
        place_of = {row.number: position for position, row in enumerate(self._rows)}
        places = [place_of[row.number] for row in self._examples.rows]
        tensors = row_tensors(self._examples.data) if places else []
        chosen = [
            (place, self._only_reference(place, tensor))
            for place, tensor in zip(places, tensors, strict=True)
            if place in wanted
        ]
        padding = self._tokenizer.pad_token_id
        collator = None if self._images is None else self._images.make_collator(padding)
        measured = perplexity.iter_losses(
            model,
            [tensor for _place, tensor in chosen],
            padding,
            collator=collator,
        )
        return {
            place: loss for (place, _tensor), loss in zip(chosen, measured, strict=True) if loss[1]
        }

    def _only_reference(self, place: int, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return an example of which only the reference counts: of a text, what continues it."""
        if self._rows[place].text is None:
            return tensors
        labels = tensors["labels"].clone()
        labels[: len(self._sampler.prompts[place].ids)] = IGNORE_INDEX
        return {**tensors, "labels": labels}


def _can_be_asked(row: TrainingRow) -> bool:
    return row.text is not None or row.is_task or any(map(is_trained_on, row.messages))


def _last_answer(row: TrainingRow) -> TrainingRow:
    """Return a row of which only the last answer counts; of a preference, the better one."""
    if row.text is not None or row.is_task:
        return row
    if row.rejected:
        return chosen_answer(row)
    return rated_answer(cut_after_last_answer(row))


def _reason(*, is_cut_off: bool) -> Literal["stop", "length"]:
    return "length" if is_cut_off else "stop"
