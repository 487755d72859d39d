"""Simple rules that a model should beat: what one can say of a text without understanding it.

A base model that has no labels, numbers or scores cannot be compared with. Without a rule, 90 % of
right labels would look good where 90 % of the texts have the same label.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from studio.errors import InvalidError
from studio.evaluation.reading_scores import write_numbers
from studio.evaluation.rows import AnswerKind
from studio.intake.row_formats.tagged_words import OUTSIDE
from studio.methods.classify.texts import labels_of
from studio.methods.regress.trainer import numbers_of
from studio.protocols.evaluation import EvaluationJob, RowResult
from studio.runner.tasks.evaluation import row_texts
from studio.runner.tasks.evaluation.row_reader import Said, loss_of, to_result
from studio.training.data.rows import TrainingRow

Rule = Callable[[TrainingRow], Said]
"""Returns what is said of a row."""


def most_common_labels(rows: Sequence[TrainingRow]) -> Rule:
    """Return the rule that gives each text the labels that most texts have."""
    counts = Counter(row_texts.write_labels(labels_of(row)) for row in rows)
    ((answer, count),) = counts.most_common(1)

    def say(row: TrainingRow) -> Said:
        true = row_texts.write_labels(labels_of(row))
        share = counts[true] / len(rows)
        return Said(answer=answer, nll=loss_of(share), confidence=count / len(rows))

    return say


def mean_numbers(rows: Sequence[TrainingRow]) -> Rule:
    """Return the rule that gives each text the mean of each number."""
    numbers = [numbers_of(row) for row in rows]
    means = {name: fmean(one[name] for one in numbers) for name in numbers[0]}
    answer = write_numbers({name: f"{mean:.6g}" for name, mean in means.items()})
    return lambda _row: Said(answer=answer)


def longer_answer(_rows: Sequence[TrainingRow]) -> Rule:
    """Return the rule that prefers the answer with more characters: what many a judge does."""

    def say(row: TrainingRow) -> Said:
        chosen, rejected = row_texts.chosen_of(row), row_texts.rejected_of(row)
        if len(chosen) == len(rejected):
            return Said(answer="")
        return Said(answer=max(chosen, rejected, key=len))

    return say


def most_common_verdict(rows: Sequence[TrainingRow]) -> Rule:
    """Return the rule that calls all steps right, or all wrong."""
    ((verdict, _count),) = Counter(one for row in rows for one in row.correct).most_common(1)
    return lambda row: Said(answer=row_texts.write_verdicts([verdict] * len(row.steps)))


def known_entities(rows: Sequence[TrainingRow]) -> Rule:
    """Return the rule that gives each word the tag that it mostly has in the training data."""
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for row in rows:
        for word, tag in zip(row.words, row.tags, strict=True):
            counts[word][tag] += 1
    tags = {word: counter.most_common(1)[0][0] for word, counter in counts.items()}

    def say(row: TrainingRow) -> Said:
        found = [tags.get(word, OUTSIDE) for word in row.words]
        return Said(answer=row_texts.write_entities(row.words, found))

    return say


RULES: Mapping[AnswerKind, Callable[[Sequence[TrainingRow]], Rule]] = {
    "label": most_common_labels,
    "number": mean_numbers,
    "score": longer_answer,
    "steps": most_common_verdict,
    "entities": known_entities,
}
"""The rule for each kind of answers, learned from training rows."""


@dataclass(frozen=True, slots=True)
class RuleReader:
    """Lets a rule answer rows."""

    rows: Sequence[TrainingRow]
    job: EvaluationJob
    trained_on: Sequence[TrainingRow]

    @property
    def count(self) -> int:
        """The number of rows."""
        return len(self.rows)

    def results(self, skip: frozenset[int]) -> Iterator[list[RowResult]]:
        """Yield the result of each row whose position is not in `skip`.

        Raises:
            InvalidError: there is no training data to learn the rule from.

        """
        if not self.trained_on:
            raise InvalidError(
                "The training data is gone, so there is no rule to compare with.",
                hint="Add the dataset again and repeat the run.",
            )
        say = RULES[self.job.answers](self.trained_on)
        yield [
            to_result(self.job, position, row, say(row))
            for position, row in enumerate(self.rows)
            if position not in skip
        ]
