"""Evaluations with made answers, as the worker stores them."""

from collections.abc import Sequence

from sqlmodel import Session

from studio.db.evaluations import AnswerSet, Evaluation, Judgement
from studio.db.states import TaskStatus
from studio.db.tables import Run
from studio.evaluation import run_metrics
from studio.evaluation.judging import Choice
from studio.protocols.evaluation import RowResult
from studio.protocols.events import Failed
from studio.protocols.judging import PairResult
from studio.protocols.run_dir import RunDir
from studio.services.evaluations import answer_sets, evaluations, judgements
from studio.services.evaluations.evaluations import EvaluationRequest
from studio.services.queue import task_results
from studio.services.tasks import tasks
from studio.settings import Settings
from studio.worker.processes.run_dir_setup import write_run_dir

TUNED_WINS: tuple[Choice, Choice] = ("B", "A")
"""What a judge chooses in both orders who prefers the run's model."""
FIRST_WINS: tuple[Choice, Choice] = ("A", "A")
"""What a judge chooses who prefers what stands first."""


def lay_out(db: Session, settings: Settings, run: Run) -> RunDir:
    """Write the folder of a run that has succeeded: its job, and something as its model."""
    folder = RunDir(settings.runs / str(run.id))
    write_run_dir(db, run, folder, settings)
    folder.artifacts.mkdir(parents=True, exist_ok=True)
    (folder.artifacts / "adapter_model.safetensors").write_bytes(bytes(run.id or 0))
    return folder


def evaluate(  # noqa: PLR0913 -- what an evaluation is made of
    db: Session,
    settings: Settings,
    run_id: int,
    base: Sequence[str],
    tuned: Sequence[str],
    expected: Sequence[str],
    *,
    seen: int = 0,
) -> Evaluation:
    """Evaluate a run whose models give these answers; the first `seen` rows were trained on."""
    evaluation = evaluations.create(db, settings, run_id, EvaluationRequest(rows=len(expected)))
    for set_id, answers, nll in (
        (evaluation.base_id, base, 4.0),
        (evaluation.tuned_id, tuned, 1.0),
    ):
        finish(db, db.get_one(AnswerSet, set_id), answers, expected, nll, seen)
    return evaluation


def finish(
    db: Session,
    answers: AnswerSet,
    written: Sequence[str],
    expected: Sequence[str],
    nll: float,
    seen: int = 0,
) -> None:
    """End the task that collects these answers; the first `seen` rows were trained on."""
    task = tasks.latest(db, answer_sets.KIND, f"answers:{answers.id}")
    if answers.finished_at is not None or task is None:
        return
    rows = [
        RowResult(
            position=position,
            number=position + 1,
            prompt=f"Question {position}?",
            reference=reference,
            answer=answer,
            reason="stop" if answer else "length",
            tokens=len(answer.split()) + 1,
            nll=nll + position / 100,
            nll_tokens=2,
            computed_in="float32",
            overlap="exact" if position < seen else "",
        )
        for position, (answer, reference) in enumerate(zip(written, expected, strict=True))
    ]
    with task_results.notify_on_end(db, task):
        metrics = run_metrics.measure([row.to_row() for row in rows])
        task.result = {"rows": [row.model_dump(mode="json") for row in rows], "metrics": metrics}
        tasks.close_work(task, TaskStatus.SUCCEEDED)


def fail(db: Session, evaluation: Evaluation) -> None:
    """End both tasks of an evaluation as failed."""
    for set_id in (evaluation.base_id, evaluation.tuned_id):
        task = tasks.latest(db, answer_sets.KIND, f"answers:{set_id}")
        if task is not None and not task.status.is_final:
            with task_results.notify_on_end(db, task):
                tasks.fail_work(task, Failed(code="killed", message="Killed.", hint="Try again."))


def judge(
    db: Session,
    settings: Settings,
    evaluation: Evaluation,
    choices: Sequence[tuple[Choice, Choice]],
    judge: str = "model:starter",
) -> Judgement:
    """Let a judge choose these places in both orders, one pair after the other."""
    judgement = judgements.create(db, settings, evaluation, judge, len(choices))
    task = tasks.latest(db, judgements.KINDS[judge.partition(":")[0]], f"judgement:{judgement.id}")
    assert task is not None
    results = [
        PairResult(
            position=pair["position"],
            base_first=base_first,
            tuned_first=tuned_first,
            base_first_reply=f"Because.\nVERDICT: {base_first}",
            tuned_first_reply=f"Because.\nVERDICT: {tuned_first}",
        )
        for pair, (base_first, tuned_first) in zip(task.params["pairs"], choices, strict=True)
    ]
    with task_results.notify_on_end(db, task):
        task.result = {"pairs": [one.model_dump(mode="json") for one in results]}
        tasks.close_work(task, TaskStatus.SUCCEEDED)
    return judgement
