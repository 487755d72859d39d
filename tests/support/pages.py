"""Every page of a studio, and what must be in it so that each has something to show."""

from pathlib import Path
from typing import Any, Literal

from sqlmodel import Session

from studio.db.column_types import now
from studio.db.states import RunStatus
from studio.db.tables import Run
from studio.intake.row_formats.schema import Turn, make_turn
from studio.protocols.events import Event, Failed, Finished, Started
from studio.protocols.rollouts import AnswerRecord, GroupRecord, Stage
from studio.protocols.run_dir import RunDir
from studio.recipe.search_space import SearchSpace, Values
from studio.services import experiments
from studio.services.accounts import secrets
from studio.services.compare import comparisons
from studio.services.datasets import dataset_builds
from studio.services.datasets.pending_datasets import Upload
from studio.services.endpoints import endpoints, lifecycle
from studio.services.endpoints.sources import Source
from studio.services.exports import exports
from studio.services.feedback import feedback
from studio.services.feedback.feedback import NewFeedback
from studio.services.models import models, remote_code_trust
from studio.services.runs import attempts, states
from studio.services.sweeps import sweeps
from studio.services.sweeps.sweep_preview import SweepPlan
from studio.services.tasks import tasks
from studio.settings import Settings
from tests.fakes.exporter import MEASURED
from tests.support import evaluated_runs, factories
from tests.unit.weights import safetensors_folders

PAGES = (
    "/",
    "/?group=precision&open=precision:bf16",
    "/?base=1&cols=precision,eval_loss,loss.curve,notes,adapter.r",
    "/?q=nothing",
    "/?q=stauts:failed",
    "/new",
    "/new?from=run:1&optimisation.seed=7",
    "/new?preset=lora#settings",
    "/new/import",
    "/runs/1",
    "/runs/2",
    "/runs/3",
    "/runs/1/chat",
    "/runs/3/chat",
    "/runs/1/charts",
    "/runs/1/answers",
    "/runs/100/rollouts",
    "/runs/100/rollouts?step=1&sort=best",
    "/runs/1/evaluation",
    "/runs/1/evaluation?sort=surprise&shown=40",
    "/runs/2/evaluation",
    "/runs/1/evaluations/1/vote",
    "/runs/1/numerics",
    "/runs/1/files",
    "/runs/1/details",
    "/runs/1/report.html",
    "/runs/3/report.html",
    "/experiments/1",
    "/compare",
    "/compare?runs=1,2",
    "/compare?runs=1,2&differs=1&blind=1",
    "/compare?runs=1,2&plot=parallel&group=seed",
    "/compare?runs=1,2,3&plot=scatter&y=log&saved=1",
    "/runs/1/broken?step=3",
    "/datasets",
    "/datasets/1",
    "/datasets/1/sight",
    "/datasets/1/stats?max_length=40",
    "/datasets/2/stats",
    "/datasets/2",
    "/datasets/2?original=3&q=film",
    "/datasets/2/mapping",
    "/datasets/3/mapping",
    "/datasets/4?finding=control_characters",
    "/datasets/4?finding=duplicates",
    "/datasets/5",
    "/feedback",
    "/feedback?kind=judged",
    "/compare/report.html?runs=1,2,3",
    "/reports/precision",
    "/reports/precision/1",
    "/reports/precision/new?from=experiment:1",
    "/sweeps",
    "/sweeps/1",
    "/sweeps/new?from=experiment:1",
    "/models",
    "/models/1",
    "/models/100",
    "/models/101",
    "/playground",
    "/playground?model=base:1&model=run:1&model=run:9&temperature.2=0.7&prompt=Why%3F",
    "/graders",
    "/endpoints",
    "/endpoints/new",
    "/endpoints/new?from=run:1",
    "/endpoints/1/log",
    "/queue",
    "/settings",
    "/settings/access",
    "/settings/people",
    "/settings/secrets",
    "/settings/log",
    "/failures",
    "/numbers",
    "/numbers?x=1e-7&update=2",
    "/help",
    "/docs",
    "/help/knobs/precision",
    "/palette?q=run",
    "/style",
    "/nowhere",
)

MAIN_PAGES = {"/", "/new", "/runs/1", "/compare?runs=1,2"}
"""Pages to look at on each push."""

STEPS_WITH_ANSWERS: tuple[tuple[int, Stage], ...] = (
    (0, "validation"),
    (1, "training"),
    (2, "training"),
)
FAILED = Failed(code="out_of_memory", message="It did not fit.", hint="Less.")


def furnish(db: Session, home: Path) -> None:
    """Add what pages show besides runs: a comparison, exports, datasets and a sweep.

    The runs come before: two that succeeded, and a third that failed.
    """
    comparisons.save(db, "A comparison", "With a text.", "runs=1,2")
    _add_exports(db, home / "runs")
    _add_evaluation(db, Settings(home=home))
    _add_endpoints(db, Settings(home=home))
    _add_feedback(db)
    _add_datasets(db, home / "datasets")
    _add_sweep(db)
    _add_reinforcement(db, home / "runs")
    _add_coded_models(db, home / "models")
    secrets.store(db, Settings(home=home), "webhook_url", "https://127.0.0.1:9/hook", "ann")
    failed = db.get(Run, 3)
    if failed and failed.status is RunStatus.FAILED:
        failed.checkpoint_step = 1


def _add_coded_models(db: Session, folder: Path) -> None:
    """Add a model that needs to run its own code, and one that may."""
    for number, name in ((100, "coded"), (101, "coded and allowed")):
        path = safetensors_folders.write(
            folder / name, {"a": ("F32", [1.0, 2.0])}, auto_map={"AutoModelForCausalLM": "own.Own"}
        )
        (path / "own.py").write_text("# What a model brings.\n", encoding="utf-8")
        model = models.add_folder(db, str(path))
        model.id = number
    remote_code_trust.grant(db, model, remote_code_trust.consent_revision(model))


def _add_datasets(db: Session, folder: Path) -> None:
    """Add one of two classes with a row left out, a draft, and two with odd rows."""
    for content, name, is_draft in (
        ("text,label\nA film,good\nNo film,bad\n,bad\nA film again,good\n", "films.csv", False),
        ("a,b\n1,2\n", "odd.csv", True),
        ("prompt,completion\nRing\x07,...\nWhy?,So.\nWhy?,So.\n", "odd rows.csv", False),
        ("prompt,completion\nWhy?,So.\n", "one row.csv", False),
    ):
        path = folder / ".arrived"
        path.write_text(content, encoding="utf-8")
        dataset_builds.import_file(db, folder, Upload(path=path, filename=name, is_draft=is_draft))


def _add_exports(db: Session, runs_folder: Path) -> None:
    """Let the first run have an export that is done, and one that failed."""
    run = RunDir(runs_folder / "1")
    run.artifacts.mkdir(parents=True, exist_ok=True)
    ends: tuple[Event, ...] = (Finished(metrics=MEASURED), FAILED)
    formats: tuple[Literal["bfloat16", "float32"], ...] = ("bfloat16", "float32")
    created = [exports.create(db, 1, dtype, None, runs_folder) for dtype in formats]
    for task, end in zip(created, ends, strict=True):
        tasks.start_work(task)
        exports.apply_events(task, [end], 1)
    files = run.export(1).files
    files.mkdir(parents=True, exist_ok=True)
    (files / "README.md").write_text("# A card\n", encoding="utf-8")


def _add_evaluation(db: Session, settings: Settings) -> None:
    """Let the first run be evaluated on rows of which it learned most."""
    run = db.get_one(Run, 1)
    if not RunDir(settings.runs / "1").job.is_file():
        evaluated_runs.lay_out(db, settings, run)
    expected = [f"The plural of thing {number} is things {number}." for number in range(30)]
    tuned = [*expected[:25], *(["The plural of thing is"] * 4), ""]
    evaluation = evaluated_runs.evaluate(
        db, settings, 1, ["A thing is a thing."] * 30, tuned, expected
    )
    won, flipped = evaluated_runs.TUNED_WINS, evaluated_runs.FIRST_WINS
    evaluated_runs.judge(db, settings, evaluation, [won] * 15 + [flipped] * 4)


def _add_endpoints(db: Session, settings: Settings) -> None:
    """Let the first run be served by three endpoints: ready, idle, and one that failed."""
    ready, idle, failing = (
        endpoints.create(db, settings, name, Source(run_id=1), "studio")
        for name in ("pets", "birds", "fish")
    )
    lifecycle.record_ready(ready)
    ready.requests, ready.last_used_at = 1234, now()
    lifecycle.record_ready(idle)
    lifecycle.give_up_slot(idle, "gave its slot up for other work; starts again on request")
    for _ in range(lifecycle.MAX_CRASHES):
        lifecycle.record_crash(failing, "The inference service ended with signal 9.", "")


def _add_feedback(db: Session) -> None:
    """Let somebody have preferred two answers, rated one and kept another."""
    prompt: list[Turn] = [make_turn("user", "What is the plural of thing?")]
    told: dict[str, Any] = {"prompt": prompt, "said_in": "chat", "run_id": 1, "model": "run 1"}
    for answer in ("The plural of thing is things.", "Things, of course."):
        worse: dict[str, Any] = {
            "rejected": "Thing.",
            "other_model": "starter",
            "temperature": 0.7,
            "seed": 1,
        }
        feedback.add(db, NewFeedback(answer=answer, **told, **worse))
    feedback.add(db, NewFeedback(answer="Things.", label=True, **told))
    feedback.add(db, NewFeedback(answer="Things.", **told))


def _add_reinforcement(db: Session, folder: Path) -> None:
    """Add a run that learned from the scores of its answers."""
    recipe = factories.make_recipe(method="grpo", rollouts={"answers_per_prompt": 4})
    experiment = experiments.create(db, "scored", recipe)
    run = Run(id=100, experiment_id=experiment.id or 0, name=experiment.name, recipe=recipe)
    db.add(run)
    db.flush()
    for status in (RunStatus.STARTING, RunStatus.RUNNING, RunStatus.SUCCEEDED):
        states.move(db, run, status)
    add_scored_answers(folder, run)


def add_scored_answers(folder: Path, run: Run) -> None:
    """Let a run have written answers at two steps: good ones, a failed one, and a long one."""
    file = RunDir(folder / str(run.id)).rollouts
    file.parent.mkdir(parents=True, exist_ok=True)
    kinds: tuple[dict[str, Any], ...] = (
        {"text": "Things.", "reward": 0.75, "parts": {"exact": 0.5, "similar": 1.0}},
        {"text": "Thing.", "reward": 0.25, "parts": {"exact": 0.0, "similar": 0.5}},
        {"text": "", "reward": None, "messages": ["The program raised an error: ValueError."]},
        {"text": "A thing and " * 100, "reward": 0.0, "tokens": 256, "is_cut_off": True},
    )
    common: dict[str, Any] = {"parts": {}, "messages": [], "tokens": 3, "is_cut_off": False}
    answers = [AnswerRecord(**common | kind) for kind in kinds]
    groups = [
        GroupRecord(step=step, stage=stage, row=row, prompt="The plural of thing?", answers=answers)
        for step, stage in STEPS_WITH_ANSWERS
        for row in (1, 2)
    ]
    lines = (group.to_line() for group in groups)
    file.write_text("".join(lines), encoding="utf-8")


def _add_sweep(db: Session) -> None:
    """Add a sweep of two runs, one of which is the best."""
    space: SearchSpace = {"optimisation.learning_rate": Values(values=[1e-4, 3e-4])}
    sweep = sweeps.create(db, experiments.get(db, 1), SweepPlan(space=space, parallel=2))
    sweeps.advance(db, sweep.id or 0)
    for run in sweeps.list_runs(db, sweep.id or 0):
        states.move(db, run, RunStatus.STARTING)
        loss = Finished(metrics={"eval_loss": 1 / (run.id or 1)})
        attempts.apply_events(db, run, [Started(total_steps=1, resolved={}), loss], 1)
    sweeps.advance(db, sweep.id or 0)
