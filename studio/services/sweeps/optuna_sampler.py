"""Optuna for sweeps: the next settings, the runs to prune, and setting importance.

Only a worker uses it, and only when needed: Optuna takes half a second to import. Each sweep has a
journal. The runs are the source of truth: a journal that is missing, damaged or inconsistent with
them is rebuilt.
"""

import random
import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.pruners import MedianPruner
from optuna.samplers import TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState
from optuna.trial import Trial as Handle

from studio.db.tables import Sweep
from studio.recipe.search_space import Distribution, Range, Scalar
from studio.services.sweeps.sweep_preview import (
    MAX_REDRAWS,
    TrialSettings,
    draw_settings,
    effective_settings,
)
from studio.services.sweeps.sweeps import MIN_TRIALS, Trial

optuna.logging.set_verbosity(optuna.logging.WARNING)

STARTUP_TRIALS = 10
"""Runs with random settings before TPE starts; at most a third of the sweep."""
PRUNER_STARTUP_TRIALS = 5
"""Runs that must finish before one can be pruned for being worse than their median."""
PRUNER_WARMUP_STEPS = 1
"""Evaluations of a run before it can be pruned: the first one says little."""
IMPORTANCE_QUANTILE = 0.25
"""A setting is important if it decides whether a run is among this share of the best."""

_STATES = {
    "going": TrialState.RUNNING,
    "done": TrialState.COMPLETE,
    "pruned": TrialState.PRUNED,
    "failed": TrialState.FAIL,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerResult:
    proposed: list[TrialSettings] = field(default_factory=list)
    to_prune: list[int] = field(default_factory=list)
    """Ids of runs to stop."""
    importance: dict[str, float] = field(default_factory=dict)


def ask_optuna(sweep: Sweep, trials: Sequence[Trial], path: Path, count: int) -> SamplerResult:
    """Return the next settings, the runs to prune, and the importance of each setting."""
    study = _sync_study(sweep, trials, path)
    return SamplerResult(
        proposed=_propose(sweep, study, count) if count else [],
        to_prune=list(_find_runs_to_prune(study)) if sweep.is_pruning else [],
        importance=_importance(study),
    )


def _sync_study(sweep: Sweep, trials: Sequence[Trial], path: Path) -> optuna.Study:
    """Return the study of the journal, updated with the runs' latest metrics."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        study = _open_study(sweep, path)
    # Raised for a damaged journal, or for a folder in its place.
    except (ValueError, KeyError, AssertionError, OSError):
        _delete_journal(path)
        study = _open_study(sweep, path)
    if not _journal_matches(study, trials):
        _delete_journal(path)
        study = _open_study(sweep, path)
    distributions = {
        name: _distribution(distribution) for name, distribution in sweep.space.items()
    }
    frozen_trials = study.get_trials(deepcopy=False)
    for trial, frozen in zip(
        trials, [*frozen_trials, *[None] * (len(trials) - len(frozen_trials))], strict=True
    ):
        if frozen is None:
            study.add_trial(_to_frozen_trial(trial, distributions))
        elif not frozen.state.is_finished():
            _report_values(study, frozen, trial)
    return study


def _delete_journal(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)


def _open_study(sweep: Sweep, path: Path) -> optuna.Study:
    # Only one worker writes it, so a lock must be left from a killed one.
    path.with_name(f"{path.name}.lock").unlink(missing_ok=True)
    study = optuna.create_study(
        study_name=f"sweep {sweep.id}",
        storage=JournalStorage(JournalFileBackend(str(path))),
        direction=_direction(sweep),
        load_if_exists=True,
    )
    study.get_trials(deepcopy=False)
    return study


def _journal_matches(study: optuna.Study, trials: Sequence[Trial]) -> bool:
    """Return whether the journal agrees with the runs, which may be ahead of it."""
    frozen_trials = study.get_trials(deepcopy=False)
    if len(frozen_trials) > len(trials):
        return False
    return all(
        frozen.user_attrs.get("run") == trial.run.id
        and (not frozen.state.is_finished() or frozen.state is _trial_state(trial))
        and len(frozen.intermediate_values) <= len(trial.intermediate_values)
        for frozen, trial in zip(frozen_trials, trials, strict=False)
    )


def _to_frozen_trial(trial: Trial, distributions: Mapping[str, BaseDistribution]) -> FrozenTrial:
    state = _trial_state(trial)
    timestamp = datetime.now(UTC).replace(tzinfo=None)
    return FrozenTrial(
        number=-1,
        trial_id=-1,
        state=state,
        value=None if state in (TrialState.RUNNING, TrialState.FAIL) else trial.value,
        datetime_start=timestamp,
        datetime_complete=timestamp if state.is_finished() else None,
        params=dict(trial.settings),
        distributions={name: distributions[name] for name in trial.settings},
        user_attrs={"run": trial.run.id},
        system_attrs={},
        intermediate_values=_intermediate_values(trial),
    )


def _report_values(study: optuna.Study, frozen: FrozenTrial, trial: Trial) -> None:
    handle = Handle(study, frozen._trial_id)  # noqa: SLF001 -- Optuna has no public lookup by trial
    for position, value in _intermediate_values(trial).items():
        if position not in frozen.intermediate_values:
            handle.report(value, position)
    state = _trial_state(trial)
    if state.is_finished():
        study.tell(frozen.number, trial.value if state is TrialState.COMPLETE else None, state)


def _intermediate_values(trial: Trial) -> dict[int, float]:
    """Return a run's values by evaluation: steps differ between batch sizes."""
    return {
        position: float("nan") if value is None else value
        for position, value in enumerate(trial.intermediate_values)
    }


def _trial_state(trial: Trial) -> TrialState:
    # A run without a finite value tells Optuna nothing.
    if trial.state == "done" and trial.value is None:
        return TrialState.FAIL
    return _STATES[trial.state]


def _propose(sweep: Sweep, study: optuna.Study, count: int) -> list[TrialSettings]:
    """Return untried settings, the most promising first."""
    # On a copy: proposals enter the journal only when their runs exist.
    number = sweep.submitted + len(sweep.refused)
    startup_trials = min(STARTUP_TRIALS, -(-sweep.count // 3))
    copy = optuna.create_study(
        direction=_direction(sweep),
        sampler=TPESampler(seed=_turn_seed(sweep.seed, number), n_startup_trials=startup_trials),
    )
    copy.add_trials(study.get_trials(deepcopy=False))
    tried: list[TrialSettings] = [dict(frozen.params) for frozen in copy.get_trials(deepcopy=False)]
    tried += sweep.refused
    proposals: list[TrialSettings] = []
    for _ in range(count):
        settings = next(_ask_untried(sweep, copy, tried), None)
        if settings is None:
            settings = _draw_untried(sweep, tried, number)
        proposals.append(settings)
        tried.append(settings)
    return proposals


def _ask_untried(
    sweep: Sweep, study: optuna.Study, tried: Sequence[TrialSettings]
) -> Iterator[TrialSettings]:
    distributions = {
        name: _distribution(distribution) for name, distribution in sweep.space.items()
    }
    for _ in range(MAX_REDRAWS):
        optuna_trial = study.ask(distributions)
        drawn = {
            name: _rounded(sweep.space[name], optuna_trial.params[name]) for name in sweep.space
        }
        settings = effective_settings(sweep.recipe, drawn)
        if settings not in tried:
            yield settings
        study.tell(optuna_trial, state=TrialState.FAIL)


def _draw_untried(sweep: Sweep, tried: Sequence[TrialSettings], number: int) -> TrialSettings:
    """Return random untried settings, for when TPE keeps suggesting known ones."""
    drawn = islice(draw_settings(sweep.space, _turn_seed(sweep.seed, number)), len(tried) + 1)
    effective = (effective_settings(sweep.recipe, settings) for settings in drawn)
    untried = [settings for settings in effective if settings not in tried]
    return untried[0] if untried else dict(tried[-1])


def _find_runs_to_prune(study: optuna.Study) -> Iterator[int]:
    pruner = MedianPruner(
        n_startup_trials=PRUNER_STARTUP_TRIALS, n_warmup_steps=PRUNER_WARMUP_STEPS
    )
    for frozen in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        if pruner.prune(study, frozen):
            yield int(frozen.user_attrs["run"])


def _importance(study: optuna.Study) -> dict[str, float]:
    done = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    if len(done) < MIN_TRIALS:
        return {}
    with _without_warnings():
        importances = get_param_importances(
            study, evaluator=PedAnovaImportanceEvaluator(target_quantile=IMPORTANCE_QUANTILE)
        )
    return {
        name: float(importances[name])
        for name in sorted(importances, key=lambda one: -importances[one])
    }


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Silence warnings about few trials: the page shows how many there are."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _distribution(distribution: Distribution) -> BaseDistribution:
    if not isinstance(distribution, Range):
        return CategoricalDistribution(tuple(distribution.values))
    if distribution.is_whole:
        step = int(distribution.step or 1)
        low, high = int(distribution.low), int(distribution.high)
        return IntDistribution(low, high - (high - low) % step, log=distribution.log, step=step)
    return FloatDistribution(
        distribution.low, distribution.high, log=distribution.log, step=distribution.step
    )


def _rounded(distribution: Distribution, value: Any) -> Scalar:  # noqa: ANN401 -- as Optuna returns it
    return distribution.rounded(value) if isinstance(distribution, Range) else value


def _direction(sweep: Sweep) -> StudyDirection:
    is_least = sweep.direction == "minimise"
    return StudyDirection.MINIMIZE if is_least else StudyDirection.MAXIMIZE


def _turn_seed(seed: int, number: int) -> int:
    """Return a seed for each proposal, the same for every worker."""
    return random.Random(f"{seed} {number}").randrange(2**31)  # noqa: S311 -- no secret
