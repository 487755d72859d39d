"""Runs as their event logs tell them, and the jobs that send them to trackers."""

from datetime import UTC, datetime
from pathlib import Path

from studio.protocols.events import (
    AlarmRaised,
    Event,
    Finished,
    MetricsLogged,
    Resumed,
    Sampled,
    Started,
)
from studio.protocols.run_dir import RunDir
from studio.settings import TrackerName
from studio.trackers.contract import RunEnd, RunFacts, TrackerJob, TrackingJob

AT = datetime(2026, 11, 28, 12, tzinfo=UTC)
END = RunEnd(status="succeeded", at=AT)


def logged(step: int, **metrics: float) -> MetricsLogged:
    values = metrics or {"loss": float(step)}
    return MetricsLogged(step=step, epoch=0.1, tokens=step * 64, seconds=step / 2, metrics=values)


def sampled(step: int, answer: str = "Hello.") -> Sampled:
    texts = {"prompt": "Hi", "reference": "Hello.", "answer": answer}
    return Sampled(stage="during", step=step, position=0, **texts)


def alarmed(step: int) -> AlarmRaised:
    return AlarmRaised(code="nan_loss", message="The loss is NaN.", hint="Lower it.", step=step)


def started() -> Started:
    resolved = {"weights": "float32", "audit": {"trained": "float32"}}
    return Started(total_steps=100, resolved=resolved)


def write_log(run: RunDir, *events: Event) -> None:
    run.root.mkdir(parents=True, exist_ok=True)
    log = run.events
    for event in events:
        log.append(event)


def resumed_run(steps: int) -> list[Event]:
    """Return a run that was killed in the middle, and whose second attempt repeats some steps."""
    killed, back = steps // 2, steps // 3
    return [
        started(),
        *(logged(step, loss=-1.0) for step in range(1, killed + 1)),
        Resumed(step=back, attempt=2),
        started(),
        *(logged(step) for step in range(back + 1, steps + 1)),
        sampled(steps),
        Finished(metrics={"eval_loss": 0.5}),
    ]


def expected_losses(steps: int) -> dict[int, float]:
    """Return the losses of `resumed_run` by step."""
    back = steps // 3
    return {step: -1.0 if step <= back else float(step) for step in range(1, steps + 1)}


def tracking_job(
    run: RunDir, *trackers: TrackerName, end: RunEnd | None = END, answer_seconds: float = 60
) -> TrackingJob:
    facts = RunFacts(
        run=7,
        key="studio-20261128120000-7",
        name="first try",
        experiment="Pets: a/b",
        url="https://studio.example.org/runs/7",
        recipe={"method": "sft", "precision": "fp32", "optimisation": {"seed": 3, "lr": 1e-4}},
        created_at=AT,
        end=end,
    )
    jobs = {name: TrackerJob(tracker=name) for name in trackers}
    return TrackingJob(
        folder=run.root, facts=facts, trackers=dict(jobs), answer_seconds=answer_seconds
    )


def run_folder(home: Path) -> RunDir:
    return RunDir(home / "runs" / "7")
