"""Evaluate a run: its model answers rows that it did not train on, and so does its base model.

A model that reads texts and writes none has no base model to compare with: a simple rule takes its
place.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sqlmodel import Session, col, select

from studio.db.evaluations import AnswerSet, Evaluation
from studio.db.states import RunStatus
from studio.db.tables import Run
from studio.errors import ConflictError, InvalidError, NotFoundError
from studio.evaluation.rows import AnswerKind
from studio.intake.detection.row_shapes import KIND_NAMES
from studio.methods import METHODS
from studio.protocols.evaluation import EvaluationJob
from studio.protocols.inference_service import GenerationRequest
from studio.protocols.run_dir import JobSpec, RunDir
from studio.protocols.tokenizer_service import PromptTokens
from studio.services.datasets import datasets, versions
from studio.services.evaluations import answer_sets
from studio.services.evaluations.answer_sets import AnswerProgress
from studio.services.models import served_models
from studio.services.models.served_models import ServedModel
from studio.services.runs import runs
from studio.settings import Settings

DEFAULT_ROWS, MAX_ROWS = 64, 1000
DEFAULT_NEW_TOKENS, MAX_NEW_TOKENS = 128, 2048

_WRITABLE = ("conversation", "text", "preference", "judged", "task")
"""Kinds of rows that a model which writes can answer."""

RULES: Mapping[AnswerKind, str] = {
    "label": "Rule: always the most common labels",
    "number": "Rule: always the mean",
    "score": "Rule: always the longer answer",
    "steps": "Rule: always the most common verdict",
    "entities": "Rule: for each word, its most common tag",
}
"""What a model that writes nothing is compared with, as its base model has no answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationRequest:
    """Which rows to ask, and how long answers may be."""

    dataset: str = ""
    """The name of a dataset; empty asks the rows that the run held out for validation."""
    rows: int = DEFAULT_ROWS
    max_new_tokens: int = DEFAULT_NEW_TOKENS


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    """The rows to ask."""

    title: str
    identity: dict[str, object]
    job: dict[str, object]
    """Fields of the job."""
    trained_on: dict[str, object]
    """Fields of the job of the model that was trained on other rows of the same run."""

    @property
    def of_run(self) -> "_Rows":
        """The same rows, for what the run was trained on."""
        return replace(self, job=self.trained_on | self.job)


def create(db: Session, settings: Settings, run_id: int, request: EvaluationRequest) -> Evaluation:
    """Evaluate a run's model against its base model; an equal evaluation is returned as it is.

    Raises:
        ConflictError: the run has no model.
        InvalidError: the dataset cannot be asked.
        NotFoundError: files of the run, its data or its base model are gone.

    """
    run = runs.get(db, run_id)
    folder = RunDir(settings.runs / str(run_id))
    require_model(run, folder)
    spec = served_models.read_job_spec(run, folder)
    rows = (
        _dataset_rows(db, settings, run, request.dataset, spec)
        if request.dataset
        else _held_out_rows(run, spec)
    )
    base = _base_answers(db, run, folder, rows, request)
    tuned = _answer_set(
        db, run, served_models.for_result(run, folder), f"run {run.id}", rows.of_run, request
    )
    same = select(Evaluation).where(
        Evaluation.run_id == run_id, Evaluation.base_id == base.id, Evaluation.tuned_id == tuned.id
    )
    if existing := db.exec(same).first():
        return existing
    evaluation = Evaluation(
        run_id=run_id,
        dataset=rows.title,
        is_held_out=not request.dataset,
        rows=request.rows,
        base_id=base.id or 0,
        tuned_id=tuned.id or 0,
    )
    db.add(evaluation)
    db.flush()
    return evaluation


def retry(db: Session, run_id: int, evaluation_id: int) -> Evaluation:
    """Ask the models that failed once more, exactly as before."""
    evaluation = get(db, run_id, evaluation_id)
    for set_id in (evaluation.base_id, evaluation.tuned_id):
        answer_sets.ask_again(db, db.get_one(AnswerSet, set_id))
    return evaluation


def get(db: Session, run_id: int, evaluation_id: int) -> Evaluation:
    evaluation = db.get(Evaluation, evaluation_id)
    if evaluation is None or evaluation.run_id != run_id:
        raise NotFoundError(
            f"Run {run_id} has no evaluation {evaluation_id}.", hint="It may have been deleted."
        )
    return evaluation


def list_for_run(db: Session, run_id: int) -> Sequence[Evaluation]:
    """Return the evaluations of a run, newest first."""
    query = select(Evaluation).where(Evaluation.run_id == run_id)
    return db.exec(query.order_by(col(Evaluation.id).desc())).all()


def delete(db: Session, run_id: int, evaluation_id: int) -> None:
    """Delete an evaluation, and the answers that no other one uses."""
    db.delete(get(db, run_id, evaluation_id))
    db.flush()
    answer_sets.delete_unused(db)


def find_progress(db: Session, evaluation: Evaluation) -> tuple[AnswerProgress, AnswerProgress]:
    """Return how far the base model and the run's model have come."""
    base, tuned = (
        answer_sets.find_progress(db, db.get_one(AnswerSet, set_id))
        for set_id in (evaluation.base_id, evaluation.tuned_id)
    )
    return base, tuned


def find_share(db: Session, run_id: int) -> float | None:
    """Return how far the newest evaluation of a run has come, up to 1; None if it has ended."""
    newest = next(iter(list_for_run(db, run_id)), None)
    progress = find_progress(db, newest) if newest else ()
    if all(one.status.is_final for one in progress):
        return None
    return sum(one.share for one in progress) / len(progress)


def answer_kind(run: Run) -> AnswerKind:
    """Return what kind of answers a run's model gives.

    Raises:
        ConflictError: it gives none.

    """
    outputs = run.recipe.outputs
    if outputs == "vector" or outputs == "relevance":  # noqa: PLR1714 -- so that types narrow
        message, hint = refusal(run)
        raise ConflictError(message, hint=hint)
    return "text" if outputs == "rewrite" else outputs


def require_texts(db: Session, evaluation: Evaluation) -> None:
    """Refuse an evaluation whose answers are no texts.

    Raises:
        ConflictError: they are labels, numbers, scores, verdicts or entities.

    """
    if db.get_one(AnswerSet, evaluation.tuned_id).answers != "text":
        raise ConflictError(
            "The answers of this evaluation are not texts that a model wrote.",
            hint="Its metrics say how good they are.",
        )


def readable_kinds(run: Run) -> tuple[str, ...]:
    """Return the kinds of rows that a run's model can be asked."""
    if run.recipe.writes_text:
        return ("images", *_WRITABLE) if run.recipe.images else _WRITABLE
    return tuple(METHODS[run.recipe.method].trains_on)


def refusal(run: Run) -> tuple[str, str]:
    """Return why a run cannot be evaluated, and what to do; empty if it can as far as known."""
    if run.recipe.reads_pairs:
        return (
            "The model of this run searches or ranks texts: it gives no answers to compare.",
            "The metrics of its validation say how well it finds what matches.",
        )
    if run.deleted_at or run.status is not RunStatus.SUCCEEDED:
        return "This run has no model yet.", "It can be evaluated once it has succeeded."
    return "", ""


def require_model(run: Run, folder: RunDir) -> None:
    message, hint = refusal(run)
    if message:
        raise ConflictError(message, hint=hint)
    if not folder.artifacts.is_dir():
        raise NotFoundError(f"The files of run {run.id} have been deleted.", hint="Run it again.")


def _held_out_rows(run: Run, spec: JobSpec) -> _Rows:
    data, recipe = spec.dataset, run.recipe
    if data is None or not spec.train.is_file():
        raise NotFoundError(
            "The dataset of this run has been deleted.", hint="Evaluate it on another dataset."
        )
    identity: dict[str, object] = {"sha256": data.rows_sha256, "part": "validation"}
    if spec.validation is None:
        identity |= {
            "share": recipe.data.validation_share,
            "seed": recipe.optimisation.seed,
            "with_bad": recipe.reads_bad_answers,
        }
    return _Rows(
        title=f"{data.name}, version {data.version}",
        identity=identity,
        job={"train": spec.train, "validation": spec.validation},
        trained_on=_trained_on(spec),
    )


def _trained_on(spec: JobSpec) -> dict[str, object]:
    """Return where the rows are that a run was trained on, if they are still there."""
    if not spec.train.is_file():
        return {}
    return {"trained_on": spec.train, "has_own_validation": spec.validation is not None}


def _dataset_rows(db: Session, settings: Settings, run: Run, name: str, spec: JobSpec) -> _Rows:
    version = versions.require(db, name)
    kinds = readable_kinds(run)
    kind, listed = KIND_NAMES[version.kind], ", ".join(KIND_NAMES[one] for one in kinds)
    if version.kind not in kinds:
        raise InvalidError(
            f"The rows of {name} cannot be answered: they are {kind}.",
            hint=f"Choose a dataset whose rows are one of these: {listed}.",
            param="dataset",
        )
    train, _validation = versions.row_files(settings.datasets, version)
    title = datasets.get(db, version.dataset_id).name
    return _Rows(
        title=f"{title}, version {version.number}",
        identity={"sha256": version.sha256, "part": "train"},
        job={"train": train, "validation": None, "is_whole": True},
        trained_on=_trained_on(spec),
    )


def _base_answers(
    db: Session, run: Run, folder: RunDir, rows: _Rows, request: EvaluationRequest
) -> AnswerSet:
    """Return what the run is compared with: its base model's answers, or those of a rule."""
    kind = answer_kind(run)
    if kind == "text":
        served = served_models.for_base(run, folder)
        return _answer_set(db, run, served, run.recipe.base_model, rows, request)
    job = _job(run, RULES[kind], rows.of_run, request)
    data = served_models.read_job_spec(run, folder).dataset
    learned_from = {
        "sha256": data.rows_sha256 if data else "",
        "share": run.recipe.data.validation_share,
        "seed": run.recipe.optimisation.seed,
    }
    return answer_sets.get_or_create(db, RULES[kind], {"rule": learned_from}, job, rows.identity)


def _answer_set(
    db: Session, run: Run, served: ServedModel, name: str, rows: _Rows, request: EvaluationRequest
) -> AnswerSet:
    blank = GenerationRequest(model="", ids=[], stops=[], gives_scores=not run.recipe.writes_text)
    model = served.fill_in(blank, name, PromptTokens(ids=[], stops=[]))
    job = _job(run, name, rows, request).model_copy(update={"model": model})
    return answer_sets.get_or_create(db, name, answer_sets.identify(served), job, rows.identity)


def _job(run: Run, name: str, rows: _Rows, request: EvaluationRequest) -> EvaluationJob:
    """Return the job of a rule; a model can be added to it."""
    recipe = run.recipe
    return EvaluationJob.model_validate(
        {
            "about": f"{name} on {rows.title}",
            "answer_set": 0,
            "answers": answer_kind(run),
            "method": recipe.method,
            "model": None,
            "validation_share": recipe.data.validation_share,
            "seed": recipe.optimisation.seed,
            "with_bad": recipe.reads_bad_answers,
            "rows": request.rows,
            "chat_template": recipe.data.chat_template,
            "has_chat_template": recipe.has_chat_template,
            "has_expected": recipe.has_expected_answers,
            "max_length": recipe.data.max_length,
            "max_new_tokens": request.max_new_tokens,
            **rows.job,
        }
    )
