"""Runs compared by their evaluations: the metrics of all that answered the same rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlmodel import Session

from studio.db.evaluations import AnswerSet, Evaluation
from studio.db.tables import Run
from studio.evaluation import metrics, statistics, verdicts
from studio.evaluation.evaluation_metric import EvaluationMetric
from studio.evaluation.rows import AnsweredRow
from studio.evaluation.statistics import Figure
from studio.services.evaluations import answer_sets, evaluations


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedRun:
    """A run and the values of its metrics."""

    run: Run
    figures: Mapping[str, Figure]
    """By metric; those that could not be measured are missing."""
    verdict: str
    """How it compares with the baseline, in one sentence; empty for the baseline itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationMatrix:
    """Runs that answered the same rows, the baseline first."""

    dataset: str
    rows: int
    metrics: list[EvaluationMetric]
    primary: EvaluationMetric
    runs: list[EvaluatedRun]
    caution: str
    """What many comparisons mean; empty if there is one."""
    others: list[Run]
    """Runs that were not evaluated on these rows."""


def load(db: Session, runs: Sequence[Run], base: Run) -> EvaluationMatrix | None:
    """Return the metrics of runs on the rows that most of them answered; None without any."""
    ordered = sorted(runs, key=lambda run: run.id != base.id)
    groups = _group_by_rows(db, ordered)
    if not groups:
        return None
    chosen = max(groups, key=lambda group: (len(group), base.id in group))
    answers = {run_id: _load_rows(db, evaluation) for run_id, evaluation in chosen.items()}
    evaluated = [run for run in ordered if run.id in answers]
    first = answers[evaluated[0].id or 0]
    primary = metrics.primary(first)
    shown = metrics.for_rows(first)
    return EvaluationMatrix(
        dataset=chosen[evaluated[0].id or 0].dataset,
        rows=len(first),
        metrics=shown,
        primary=primary,
        runs=[
            _evaluated(run, answers[run.id or 0], shown, primary, None if not place else first)
            for place, run in enumerate(evaluated)
        ],
        caution=_count_looks(len(evaluated) - 1),
        others=[run for run in ordered if run.id not in answers],
    )


def _group_by_rows(db: Session, runs: Sequence[Run]) -> list[dict[int, Evaluation]]:
    """Return the newest finished evaluation of each run, in groups that asked the same rows."""
    groups: dict[str, dict[int, Evaluation]] = {}
    for run in runs:
        for evaluation in evaluations.list_for_run(db, run.id or 0):
            answer_set = db.get_one(AnswerSet, evaluation.tuned_id)
            if answer_set.finished_at is not None:
                asked = {name: answer_set.made_by[name] for name in ("rows", "max_new_tokens")}
                asked["answers"] = answer_set.answers
                groups.setdefault(str(asked), {}).setdefault(run.id or 0, evaluation)
    return list(groups.values())


def _load_rows(db: Session, evaluation: Evaluation) -> list[AnsweredRow]:
    kind = db.get_one(AnswerSet, evaluation.tuned_id).answers
    answers = answer_sets.load_answers(db, evaluation.tuned_id)
    return [answer_sets.to_row(answer, kind) for answer in answers]


def _evaluated(
    run: Run,
    rows: Sequence[AnsweredRow],
    shown: Sequence[EvaluationMetric],
    primary: EvaluationMetric,
    baseline: Sequence[AnsweredRow] | None,
) -> EvaluatedRun:
    measured = {metric.key: statistics.measure(metric, rows) for metric in shown}
    figures = {key: figure for key, figure in measured.items() if figure is not None}
    return EvaluatedRun(run=run, figures=figures, verdict=_verdict(primary, baseline, rows))


def _verdict(
    primary: EvaluationMetric, baseline: Sequence[AnsweredRow] | None, rows: Sequence[AnsweredRow]
) -> str:
    if baseline is None:
        return ""
    before, after = (statistics.measure(primary, side) for side in (baseline, rows))
    if before is None or after is None:
        return ""
    return verdicts.verdict(primary, before, after, statistics.compare(primary, baseline, rows))


def _count_looks(comparisons: int) -> str:
    """Return what it means that so many runs were compared with the baseline."""
    if comparisons < 2:  # noqa: PLR2004 -- one comparison needs no caution
        return ""
    return f"Of {comparisons:,} comparisons with the baseline, one may look clear by chance."
