"""Judgements: a judge, or a person, says which of two models' answers is better."""

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from sqlmodel import Session, col, select

from studio.db.evaluations import Evaluation, JudgedAnswers, Judgement
from studio.db.owners import current_actor, current_owner_id
from studio.db.states import RunStatus, TaskStatus
from studio.db.tables import Run
from studio.db.tasks import Task
from studio.errors import ConflictError, InvalidError, NotFoundError
from studio.evaluation import judging
from studio.evaluation.judging import Agreement, Choice, JudgedPair, JudgeResult, PairVerdict
from studio.protocols.inference_service import GenerationRequest
from studio.protocols.judging import JudgementJob, Pair, PairResult
from studio.protocols.run_dir import RunDir
from studio.protocols.tokenizer_service import PromptTokens
from studio.services.evaluations import answer_sets, evaluation_results, evaluations
from studio.services.evaluations.answer_sets import AnswerProgress
from studio.services.evaluations.evaluation_results import EvaluationResults, RowPair
from studio.services.models import served_models
from studio.services.openai import model_names
from studio.services.runs import runs
from studio.services.tasks import tasks
from studio.settings import Settings

ENDPOINT, PERSON, REWARD, MODEL = "endpoint", "person", "reward", "model"
KINDS = {ENDPOINT: "judge", REWARD: "judge-here", MODEL: "judge-here"}
"""The kind of task that each kind of judge works in."""

DEFAULT_PAIRS, MAX_PAIRS = 64, 500

_CHARS_PER_TOKEN = 4
_QUESTION_CHARS = 600
"""Characters of what a judge is asked besides the row."""
_REPLY_TOKENS = 60
"""Tokens of a usual reply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeChoice:
    """A judge that can be asked."""

    value: str
    """`endpoint`, `reward:<run>` or `model:<name>`."""
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What a judgement costs at most."""

    requests: int
    tokens: int
    """Of questions and usual replies, estimated at four characters a token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A judgement as far as it has come."""

    judgement: Judgement
    progress: AnswerProgress
    result: JudgeResult | None
    """None until there is a pair."""
    agreement: Agreement | None
    """With what people said of the same pairs."""
    pairs: list[tuple[RowPair, JudgedAnswers, PairVerdict]]


def list_judges(db: Session, settings: Settings) -> list[JudgeChoice]:
    """Return the judges that can be asked: the endpoint first, then reward models, then others."""
    choices: list[JudgeChoice] = []
    if settings.judge_url and settings.judge_model:
        choices.append(JudgeChoice(value=ENDPOINT, title=settings.judge_model))
    scoring = select(Run).where(Run.status == RunStatus.SUCCEEDED, col(Run.deleted_at).is_(None))
    for run in db.exec(scoring.order_by(col(Run.id).desc())):
        if run.recipe.method == REWARD:
            title = f"Reward model of {run.name} #{run.id}"
            choices.append(JudgeChoice(value=f"{REWARD}:{run.id}", title=title))
    names = (model.name for model in model_names.list_models(db))
    return choices + [JudgeChoice(value=f"{MODEL}:{name}", title=name) for name in names]


def estimate(results: EvaluationResults, count: int) -> Budget:
    """Return what judging so many pairs costs at most. Equal answers are not sent."""
    pairs = [row for row in choose_rows(results, count) if row.base.answer != row.tuned.answer]
    chars = sum(
        len(row.prompt) + len(row.reference) + len(row.base.answer) + len(row.tuned.answer)
        for row in pairs
    )
    question = (chars + _QUESTION_CHARS * len(pairs)) / _CHARS_PER_TOKEN
    return Budget(
        requests=2 * len(pairs), tokens=math.ceil(2 * (question + _REPLY_TOKENS * len(pairs)))
    )


def choose_rows(results: EvaluationResults, count: int) -> list[RowPair]:
    """Return rows to judge: if there are more, the same ones are chosen every time."""
    chosen = random.Random(0).sample(range(len(results.rows)), min(count, len(results.rows)))  # noqa: S311 -- no secret
    return [results.rows[index] for index in sorted(chosen)]


def create(
    db: Session, settings: Settings, evaluation: Evaluation, judge: str, count: int = DEFAULT_PAIRS
) -> Judgement:
    """Let a judge compare the answers of an evaluation, in the background.

    Raises:
        ConflictError: the models have not answered yet, or write no text.
        InvalidError: there is no such judge.
        NotFoundError: the judge's files are gone.

    """
    evaluations.require_texts(db, evaluation)
    results = _require_results(db, evaluation)
    title = _require_choice(db, settings, judge).title
    rows = choose_rows(results, count)
    judgement = Judgement(
        evaluation_id=evaluation.id or 0, judge=judge, title=title, pairs=len(rows)
    )
    db.add(judgement)
    db.flush()
    job = JudgementJob.model_validate(
        {
            "about": f"answers of run {evaluation.run_id}, judged by {title}",
            "judgement": judgement.id,
            "judge": _describe_judge(db, settings, judge),
            "pairs": [_to_pair(row) for row in rows],
        }
    )
    kind = KINDS[judge.partition(":")[0]]
    tasks.enqueue(db, kind, _subject(judgement), job.model_dump(mode="json"))
    return judgement


def on_task_end(db: Session, task: Task, result: dict[str, Any]) -> None:
    """Keep what a judge said."""
    judgement = db.get(Judgement, task.params["judgement"])
    if not result or judgement is None or judgement.finished_at is not None:
        return
    for one in map(PairResult.model_validate, result["pairs"]):
        db.add(JudgedAnswers(judgement_id=judgement.id or 0, **one.model_dump()))
    judgement.finished_at = datetime.now(UTC)
    task.result = {"pairs": len(result["pairs"])}


def list_for_evaluation(db: Session, evaluation: Evaluation) -> list[Judged]:
    """Return the judgements of an evaluation, newest first."""
    query = select(Judgement).where(Judgement.evaluation_id == evaluation.id)
    found = db.exec(query.order_by(col(Judgement.id).desc())).all()
    people = people_verdicts(db, evaluation)
    results = evaluation_results.load(db, evaluation)
    return [_load(db, one, results, people) for one in found]


def load(db: Session, evaluation: Evaluation, judgement_id: int) -> Judged:
    """Return a judgement as far as it has come.

    Raises:
        NotFoundError: there is none.

    """
    judgement = get(db, evaluation, judgement_id)
    results = evaluation_results.load(db, evaluation)
    return _load(db, judgement, results, people_verdicts(db, evaluation))


def get(db: Session, evaluation: Evaluation, judgement_id: int) -> Judgement:
    judgement = db.get(Judgement, judgement_id)
    if judgement is None or judgement.evaluation_id != evaluation.id:
        raise NotFoundError(
            f"Evaluation {evaluation.id} has no judgement {judgement_id}.",
            hint="It may have been deleted.",
        )
    return judgement


def delete(db: Session, evaluation: Evaluation, judgement_id: int) -> None:
    """Delete a judgement; one that is under way ends."""
    judgement = get(db, evaluation, judgement_id)
    for task in tasks.list_for_subject(db, _subject(judgement)):
        if not task.status.is_final:
            tasks.cancel(task)
    db.delete(judgement)


def people_verdicts(db: Session, evaluation: Evaluation) -> dict[int, PairVerdict]:
    """Return what people said of pairs, by position; of several people the newest counts."""
    query = (
        select(JudgedAnswers)
        .join(Judgement, col(Judgement.id) == col(JudgedAnswers.judgement_id))
        .where(Judgement.evaluation_id == evaluation.id, Judgement.judge == PERSON)
        .order_by(col(JudgedAnswers.id))
    )
    return {one.position: _to_judged(one).verdict for one in db.exec(query)}


def next_pair(db: Session, evaluation: Evaluation) -> tuple[RowPair | None, int]:
    """Return the next pair that the caller has not judged, and how many they have.

    Pairs with equal answers are left out: there is nothing to judge.
    """
    results = _require_results(db, evaluation)
    own = _find_own(db, evaluation)
    own_id = own.id if own else None
    query = select(JudgedAnswers.position).where(JudgedAnswers.judgement_id == own_id)
    seen = set(db.exec(query))
    rows = [row for row in results.rows if row.base.answer != row.tuned.answer]
    random.Random(0).shuffle(rows)  # noqa: S311 -- no secret
    return next((row for row in rows if row.tuned.position not in seen), None), len(seen)


def vote(
    db: Session, evaluation: Evaluation, position: int, verdict: Literal["base", "tuned", "tie"]
) -> None:
    """Record what the caller says of a pair; a second vote replaces the first.

    Raises:
        NotFoundError: there is no such pair.

    """
    results = _require_results(db, evaluation)
    if all(row.tuned.position != position for row in results.rows):
        raise NotFoundError(f"There is no pair {position}.", hint="Reload the page.")
    own = _find_own(db, evaluation)
    if own is None:
        name = current_actor().name
        own = Judgement(evaluation_id=evaluation.id or 0, judge=PERSON, title=name, pairs=0)
        db.add(own)
        db.flush()
    same = select(JudgedAnswers).where(
        JudgedAnswers.judgement_id == own.id, JudgedAnswers.position == position
    )
    answers = db.exec(same).first() or JudgedAnswers(
        judgement_id=own.id or 0, position=position, base_first="", tuned_first=""
    )
    answers.base_first, answers.tuned_first = _CHOICES[verdict]
    db.add(answers)
    db.flush()
    counted = select(JudgedAnswers).where(JudgedAnswers.judgement_id == own.id)
    own.pairs, own.finished_at = len(db.exec(counted).all()), datetime.now(UTC)


_CHOICES: Mapping[PairVerdict, tuple[Choice, Choice]] = {
    "base": ("A", "B"),
    "tuned": ("B", "A"),
    "tie": ("tie", "tie"),
}


def vote_blind(
    db: Session, evaluation: Evaluation, position: int, choice: Literal["A", "B", "tie"]
) -> None:
    """Record what the caller says of a pair whose answers stood in an order by chance.

    Raises:
        NotFoundError: there is no such pair.

    """
    if choice == "tie":
        vote(db, evaluation, position, "tie")
    else:
        is_tuned = (choice == "A") == is_shown_swapped(position)
        vote(db, evaluation, position, "tuned" if is_tuned else "base")


def find_position(db: Session, evaluation: Evaluation, number: int) -> int:
    """Return the position of the row with a number.

    Raises:
        NotFoundError: it was not asked.

    """
    rows = _require_results(db, evaluation).rows
    found = next((row.tuned.position for row in rows if row.number == number), None)
    if found is None:
        raise NotFoundError(
            f"Row {number} is not part of evaluation {evaluation.id}.",
            hint="List its rows with GET …/rows.",
        )
    return found


def is_shown_swapped(position: int) -> bool:
    """Whether a person sees the tuned model's answer first: by chance, the same every time."""
    return random.Random(position).random() < 1 / 2  # noqa: S311 -- no secret


def _find_own(db: Session, evaluation: Evaluation) -> Judgement | None:
    query = select(Judgement).where(
        Judgement.evaluation_id == evaluation.id,
        Judgement.judge == PERSON,
        Judgement.owner_id == current_owner_id(),
    )
    return db.exec(query).first()


def _require_results(db: Session, evaluation: Evaluation) -> EvaluationResults:
    results = evaluation_results.load(db, evaluation)
    if results is None:
        raise ConflictError(
            "The models have not answered all rows yet.", hint="Try again when they have."
        )
    return results


def _require_choice(db: Session, settings: Settings, judge: str) -> JudgeChoice:
    found = next((one for one in list_judges(db, settings) if one.value == judge), None)
    if found is None:
        hint = "Set STUDIO_JUDGE_URL and STUDIO_JUDGE_MODEL." if judge == ENDPOINT else _CHOOSE
        raise InvalidError(f"There is no judge {judge[:200]}.", hint=hint, param="judge")
    return found


_CHOOSE = "Choose one of the judges that the evaluation's page lists."


def _describe_judge(db: Session, settings: Settings, judge: str) -> dict[str, Any]:
    """Return how the task's process asks a judge."""
    kind, _, name = judge.partition(":")
    blank = GenerationRequest(model="", ids=[], stops=[])
    if kind == ENDPOINT:
        return {"kind": kind, "url": settings.judge_url, "model": settings.judge_model}
    if kind == MODEL:
        served = model_names.resolve_served_model(db, settings.runs, name)
        return {"kind": kind, "model": served.fill_in(blank, name, PromptTokens(ids=[], stops=[]))}
    run = runs.get(db, int(name))
    served = served_models.for_result(run, RunDir(settings.runs / name))
    request = served.fill_in(blank, f"run {run.id}", PromptTokens(ids=[], stops=[]))
    scoring = request.model_copy(update={"gives_scores": True})
    return {"kind": kind, "model": scoring, "max_length": run.recipe.data.max_length}


def _load(
    db: Session,
    judgement: Judgement,
    results: EvaluationResults | None,
    people: Mapping[int, PairVerdict],
) -> Judged:
    query = select(JudgedAnswers).where(JudgedAnswers.judgement_id == judgement.id)
    answers = db.exec(query.order_by(col(JudgedAnswers.position))).all()
    rows = {row.tuned.position: row for row in results.rows} if results else {}
    equal = {place for place, row in rows.items() if row.base.answer == row.tuned.answer}
    judged = [_to_judged(one, is_asked=one.position not in equal) for one in answers]
    verdicts = {pair.position: pair.verdict for pair in judged}
    return Judged(
        judgement=judgement,
        progress=_progress(db, judgement),
        result=judging.summarise(judged) if judged else None,
        agreement=judging.agree(verdicts, people) if judgement.judge != PERSON else None,
        pairs=[
            (rows[one.position], one, verdicts[one.position])
            for one in answers
            if one.position in rows
        ],
    )


def _progress(db: Session, judgement: Judgement) -> AnswerProgress:
    if judgement.finished_at is not None:
        return AnswerProgress(status=TaskStatus.SUCCEEDED, share=1.0)
    kind = KINDS[judgement.judge.partition(":")[0]]
    return answer_sets.task_progress(db, kind, _subject(judgement))


def _to_judged(answers: JudgedAnswers, *, is_asked: bool = True) -> JudgedPair:
    fields = answers.model_dump(exclude={"id", "judgement_id"})
    return PairResult.model_validate(fields).to_pair(is_asked=is_asked)


def _to_pair(row: RowPair) -> Pair:
    return Pair(
        position=row.tuned.position,
        prompt=row.prompt,
        reference=row.reference,
        base=row.base.answer,
        tuned=row.tuned.answer,
    )


def _subject(judgement: Judgement) -> str:
    return f"judgement:{judgement.id}"
