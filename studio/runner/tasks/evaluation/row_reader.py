"""Rows read by a model that writes none: what it says of each, as text that can be scored."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from studio.errors import InvalidError
from studio.evaluation.reading_scores import write_numbers
from studio.methods.regress.trainer import numbers_of
from studio.protocols.evaluation import EvaluationJob, RowResult
from studio.protocols.inference_service import GenerationEnd, GenerationRequest
from studio.runner.inference import reading
from studio.runner.tasks.evaluation import row_texts
from studio.training.data.chat_templates import ChatTemplate
from studio.training.data.labels import IGNORE_INDEX
from studio.training.data.rows import TrainingRow
from studio.training.data.tagged_words import find_places
from studio.training.models import heads
from studio.weights import encoders

_DIGITS = 4
"""A number is written to so many digits of its scatter in the training data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What was said of a row."""

    answer: str
    nll: float | None = None
    """The loss of the right answer in nats; None if it is not known."""
    confidence: float | None = None
    reference: str | None = None
    """What could be said of the part that was read; None if that is the whole reference."""


Example = Mapping[str, Any]
"""The columns of a row that its method's `tokenise` gives."""


class RowReader:
    """Reads rows one by one, exactly as a prediction does."""

    def __init__(
        self,
        rows: Sequence[TrainingRow],
        template: ChatTemplate | None,
        tokenizer: PreTrainedTokenizerBase,
        job: EvaluationJob,
        model: PreTrainedModel,
    ) -> None:
        """Tokenise rows as in training."""
        tokenise = import_module(f"studio.methods.{job.method}.trainer").tokenise
        length = min(job.max_length, encoders.max_tokens(model.config.to_dict()) or job.max_length)
        examples = tokenise(rows, template, tokenizer, length)
        places = {row.number: position for position, row in enumerate(rows)}
        self._job, self._model = job, model
        self._ends: list[GenerationEnd] = []
        """What the model said of the row being read."""
        self._rows = {places[row.number]: row for row in examples.rows}
        self._examples = dict(zip(self._rows, examples.data, strict=True))

    @property
    def count(self) -> int:
        """The number of rows of which the model can read something."""
        return len(self._rows)

    def results(self, skip: frozenset[int]) -> Iterator[list[RowResult]]:
        """Yield the result of each row whose position is not in `skip`.

        Raises:
            InvalidError: the model gives NaN, or other numbers than the rows have.

        """
        for position, row in self._rows.items():
            if position not in skip:
                self._ends.clear()
                said = _READERS[self._job.answers](self, row, self._examples[position])
                yield [
                    to_result(
                        self._job,
                        position,
                        row,
                        said,
                        tokens=sum(end.tokens for end in self._ends),
                        computed_in=" and ".join(sorted({end.computed_in for end in self._ends})),
                    )
                ]

    def read(self, row: TrainingRow, **asked: Any) -> GenerationEnd:  # noqa: ANN401 -- fields of a request
        """Let the model read the tokens of a row."""
        request = GenerationRequest(model="", stops=[], gives_scores=True, **asked)
        end = reading.read(request, self._model)
        numbers = (*end.scores.values(), *end.steps, *(tag.likely for tag in end.tags))
        if not all(map(math.isfinite, numbers)):
            raise InvalidError(
                f"The model gives NaN or infinity for row {row.number:,}.",
                hint="Its weights are broken, or overflow in this number format: train it again.",
            )
        self._ends.append(end)
        return end

    def read_labels(self, row: TrainingRow, example: Example) -> Said:
        """Return the labels that the model gives a text."""
        end = self.read(row, ids=example["input_ids"])
        answer, true = row_texts.write_labels(end.labels), row_texts.reference_of("label", row)
        if self._model.config.problem_type != "single_label_classification":
            return Said(answer=answer)
        shares = {row_texts.write_labels([name]): share for name, share in end.scores.items()}
        return Said(answer=answer, nll=loss_of(shares.get(true)), confidence=max(shares.values()))

    def read_numbers(self, row: TrainingRow, example: Example) -> Said:
        """Return the numbers that the model gives a text."""
        end = self.read(row, ids=example["input_ids"])
        true = numbers_of(row)
        if end.scores.keys() != true.keys():
            given, found = (", ".join(one) for one in (end.scores, true))
            raise InvalidError(
                f"The model gives {given}, and row {row.number:,} has {found}.",
                hint="Choose a dataset with the numbers that the model was trained on.",
            )
        config: Any = self._model.config
        digits = dict(zip(end.scores, map(_decimals, config.target_deviations), strict=True))
        written = {name: f"{one:.{digits[name]}f}" for name, one in end.scores.items()}
        return Said(answer=write_numbers({name: written[name] for name in true}))

    def read_pair(self, row: TrainingRow, example: Example) -> Said:
        """Return which of two answers has the higher score."""
        chosen, rejected = (
            next(iter(self.read(row, ids=example[column]).scores.values()))
            for column in ("input_ids", "rejected_ids")
        )
        margin = chosen - rejected
        answers = {1: row_texts.chosen_of(row), -1: row_texts.rejected_of(row)}
        return Said(
            answer=answers.get((margin > 0) - (margin < 0), ""),
            nll=_softplus(-margin),
            confidence=math.exp(-_softplus(-abs(margin))),
        )

    def check_steps(self, row: TrainingRow, example: Example) -> Said:
        """Return the verdict on each step that was read."""
        labels: list[int] = example["labels"]
        places = [place for place, label in enumerate(labels) if label != IGNORE_INDEX]
        end = self.read(row, ids=example["input_ids"], places=places)
        verdicts = row_texts.write_verdicts(one >= 1 / 2 for one in end.steps)
        return Said(
            answer=verdicts, reference=row_texts.write_verdicts(row.correct[: len(end.steps)])
        )

    def find_entities(self, row: TrainingRow, example: Example) -> Said:
        """Return the entities among the words that were read."""
        is_first = heads.encoder_of(self._model.config) is not None
        found = find_places(example["labels"], is_first=is_first)
        places: list[int] = []
        for number in range(max(found) + 1):
            places.append(found.get(number, places[-1] if places else min(found.values())))
        end = self.read(row, ids=example["input_ids"], places=places, gives_tags=True)
        return Said(answer=row_texts.write_entities(row.words, [one.tag for one in end.tags]))


_READERS: Mapping[str, Callable[[RowReader, TrainingRow, Example], Said]] = {
    "label": RowReader.read_labels,
    "number": RowReader.read_numbers,
    "score": RowReader.read_pair,
    "steps": RowReader.check_steps,
    "entities": RowReader.find_entities,
}


def to_result(
    job: EvaluationJob,
    position: int,
    row: TrainingRow,
    said: Said,
    *,
    tokens: int = 0,
    computed_in: str = "",
) -> RowResult:
    """Return what was said of a row as its result."""
    whole = row_texts.reference_of(job.answers, row)
    return RowResult(
        position=position,
        number=row.number,
        prompt=row_texts.prompt_of(job.answers, row),
        reference=whole if said.reference is None else said.reference,
        answer=said.answer,
        reason="stop",
        tokens=tokens,
        nll=said.nll,
        nll_tokens=int(said.nll is not None),
        computed_in=computed_in,
        kind=job.answers,
        confidence=said.confidence,
    )


def loss_of(share: float | None) -> float | None:
    """Return the loss of an answer with a probability; None without any."""
    return -math.log(share) if share else None


def _softplus(value: float) -> float:
    """Return log(1 + exp(value)): the loss of a pair whose better answer scores that much less."""
    return max(value, 0.0) + math.log1p(math.exp(-abs(value)))


def _decimals(deviation: float) -> int:
    """Return how many digits after the decimal point a number deserves."""
    return max(0, _DIGITS - 1 - math.floor(math.log10(deviation)))
