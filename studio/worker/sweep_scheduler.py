"""Continue sweeps as their runs end."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Engine

from studio.db.session import read_session, unit_of_work
from studio.db.tables import Sweep
from studio.services.sweeps import sweeps
from studio.services.sweeps.sweeps import Trial
from studio.services.tasks import exit_diagnosis
from studio.worker.fault_isolation import FaultIsolation

if TYPE_CHECKING:
    from studio.services.sweeps import optuna_sampler


@dataclass(slots=True)
class SweepScheduler:
    """Checks sweeps often, and only acts on those whose state has changed."""

    engine: Engine
    folder: Path
    """The folder of Optuna's journals."""
    isolation: FaultIsolation = field(default_factory=FaultIsolation)
    is_busy: bool = False
    """Whether the last tick has continued a sweep, whose runs wait for the next tick."""
    _last_states: dict[int, tuple[object, ...]] = field(default_factory=dict)

    def tick(self) -> None:
        """Process each sweep that has changed."""
        self.is_busy = False
        with self.isolation.step("sweeps"):
            with read_session(self.engine) as db:
                running = [
                    (sweep, sweeps.change_marker(db, sweep)) for sweep in sweeps.list_running(db)
                ]
            for sweep, state in running:
                if self._last_states.get(sweep.id or 0) != state:
                    self.is_busy = True
                    self._process_sweep(sweep, state)

    def _process_sweep(self, sweep: Sweep, state: tuple[object, ...]) -> None:
        """Continue a sweep, or fail it if that fails permanently."""
        sweep_id, subject = sweep.id or 0, f"sweep {sweep.id}"
        with self.isolation.step("sweeps", subject):
            self._advance(sweep)
            self._last_states[sweep_id] = state
        if error := self.isolation.final_error("sweeps", subject):
            with self.isolation.step("end", subject), unit_of_work(self.engine) as db:
                sweeps.fail(db, sweep_id, exit_diagnosis.monitoring_failure(error, "sweep"))
                self.isolation.forget(subject)

    def _advance(self, sweep: Sweep) -> None:
        with read_session(self.engine) as db:
            sweep_trials = sweeps.list_trials(db, sweep, courses=sweep.is_pruning)
            count = 0 if sweep.planned else sweeps.count_queueable(db, sweep)
        # Outside of any transaction, so that the database is not locked while Optuna computes.
        result = _consult_optuna(sweep, sweep_trials, self.folder, count)
        with unit_of_work(self.engine) as db:
            current = sweeps.get(db, sweep.id or 0)
            if current.submitted != sweep.submitted:
                return  # Another worker has continued the sweep in the meantime.
            if result is not None:
                sweeps.prune(db, current, result.to_prune)
                current.importance = result.importance
            sweeps.advance(db, current.id or 0, result.proposed if result else ())


def _consult_optuna(
    sweep: Sweep, sweep_trials: Sequence[Trial], folder: Path, count: int
) -> "optuna_sampler.SamplerResult | None":
    """Ask Optuna; return None if there is nothing to ask yet."""
    done = [trial for trial in sweep_trials if trial.state == "done"]
    if sweep.strategy != "tpe" and len(done) < sweeps.MIN_TRIALS:
        return None
    # Optuna takes half a second to import, so the web and workers without sweeps never load it.
    from studio.services.sweeps import optuna_sampler  # noqa: PLC0415 -- heavy import

    return optuna_sampler.ask_optuna(sweep, sweep_trials, folder / f"{sweep.id}.journal", count)
