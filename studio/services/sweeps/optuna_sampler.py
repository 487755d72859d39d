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

from studio.db.sweeps import Sweep
from studio.recipe.search_space import Distribution, Range, Scalar
from studio.services.sweeps.sweep_preview import (
    MAX_REDRAWS,
    TrialSettings,
    draw_settings,
    effective_settings,
)
from studio.services.sweeps.trials import MIN_TRIALS, Trial

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


def ask_optuna(sweep: Sweep, trials: Sequence[Trial], path: Path, wanted: int) -> SamplerResult:
    """Return the next settings, the runs to prune, and the importance of each setting."""
    study = _sync_study(sweep, trials, path)
    return SamplerResult(
        proposed=_propose(sweep, study, wanted) if wanted else [],
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
    distributions = {name: _distribution(one) for name, one in sweep.space.items()}
    known = study.get_trials(deepcopy=False)
    for trial, noted in zip(trials, [*known, *[None] * (len(trials) - len(known))], strict=True):
        if noted is None:
            study.add_trial(_to_frozen_trial(trial, distributions))
        elif not noted.state.is_finished():
            _report_values(study, noted, trial)
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
    known = study.get_trials(deepcopy=False)
    if len(known) > len(trials):
        return False
    return all(
        noted.user_attrs.get("run") == trial.run.id
        and (not noted.state.is_finished() or noted.state is _trial_state(trial))
        and len(noted.intermediate_values) <= len(trial.intermediate_values)
        for noted, trial in zip(known, trials, strict=False)
    )


def _to_frozen_trial(trial: Trial, distributions: Mapping[str, BaseDistribution]) -> FrozenTrial:
    state = _trial_state(trial)
    at = datetime.now(UTC).replace(tzinfo=None)
    return FrozenTrial(
        number=-1,
        trial_id=-1,
        state=state,
        value=None if state in (TrialState.RUNNING, TrialState.FAIL) else trial.value,
        datetime_start=at,
        datetime_complete=at if state.is_finished() else None,
        params=dict(trial.settings),
        distributions={name: distributions[name] for name in trial.settings},
        user_attrs={"run": trial.run.id},
        system_attrs={},
        intermediate_values=_intermediate_values(trial),
    )


def _report_values(study: optuna.Study, noted: FrozenTrial, trial: Trial) -> None:
    handle = Handle(study, noted._trial_id)  # noqa: SLF001 -- Optuna has no public lookup by trial
    for place, value in _intermediate_values(trial).items():
        if place not in noted.intermediate_values:
            handle.report(value, place)
    state = _trial_state(trial)
    if state.is_finished():
        study.tell(noted.number, trial.value if state is TrialState.COMPLETE else None, state)


def _intermediate_values(trial: Trial) -> dict[int, float]:
    """Return a run's values by evaluation: steps differ between batch sizes."""
    return {
        place: float("nan") if value is None else value
        for place, value in enumerate(trial.intermediate_values)
    }


def _trial_state(trial: Trial) -> TrialState:
    # A run without a finite value tells Optuna nothing.
    if trial.state == "done" and trial.value is None:
        return TrialState.FAIL
    return _STATES[trial.state]


def _propose(sweep: Sweep, study: optuna.Study, wanted: int) -> list[TrialSettings]:
    """Return untried settings, the most promising first."""
    # On a copy: proposals enter the journal only when their runs exist.
    number = sweep.submitted + len(sweep.refused)
    starting = min(STARTUP_TRIALS, -(-sweep.count // 3))
    copy = optuna.create_study(
        direction=_direction(sweep),
        sampler=TPESampler(seed=_turn_seed(sweep.seed, number), n_startup_trials=starting),
    )
    copy.add_trials(study.get_trials(deepcopy=False))
    seen: list[TrialSettings] = [dict(one.params) for one in copy.get_trials(deepcopy=False)]
    seen += sweep.refused
    made: list[TrialSettings] = []
    for _ in range(wanted):
        settings = next(_ask_untried(sweep, copy, seen), None)
        if settings is None:
            settings = _draw_untried(sweep, seen, number)
        made.append(settings)
        seen.append(settings)
    return made


def _ask_untried(
    sweep: Sweep, study: optuna.Study, seen: Sequence[TrialSettings]
) -> Iterator[TrialSettings]:
    distributions = {name: _distribution(one) for name, one in sweep.space.items()}
    for _ in range(MAX_REDRAWS):
        asked = study.ask(distributions)
        drawn = {name: _rounded(sweep.space[name], asked.params[name]) for name in sweep.space}
        settings = effective_settings(sweep.recipe, drawn)
        if settings not in seen:
            yield settings
        study.tell(asked, state=TrialState.FAIL)


def _draw_untried(sweep: Sweep, seen: Sequence[TrialSettings], number: int) -> TrialSettings:
    """Return random untried settings, for when TPE keeps suggesting known ones."""
    drawn = islice(draw_settings(sweep.space, _turn_seed(sweep.seed, number)), len(seen) + 1)
    counted = (effective_settings(sweep.recipe, settings) for settings in drawn)
    found = [settings for settings in counted if settings not in seen]
    return found[0] if found else dict(seen[-1])


def _find_runs_to_prune(study: optuna.Study) -> Iterator[int]:
    pruner = MedianPruner(
        n_startup_trials=PRUNER_STARTUP_TRIALS, n_warmup_steps=PRUNER_WARMUP_STEPS
    )
    for noted in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        if pruner.prune(study, noted):
            yield int(noted.user_attrs["run"])


def _importance(study: optuna.Study) -> dict[str, float]:
    done = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    if len(done) < MIN_TRIALS:
        return {}
    with _without_warnings():
        told = get_param_importances(
            study, evaluator=PedAnovaImportanceEvaluator(target_quantile=IMPORTANCE_QUANTILE)
        )
    return {name: float(told[name]) for name in sorted(told, key=lambda one: -told[one])}


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Silence warnings about few trials: the page shows how many there are."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _distribution(several: Distribution) -> BaseDistribution:
    if not isinstance(several, Range):
        return CategoricalDistribution(tuple(several.values))
    if several.is_whole:
        step = int(several.step or 1)
        low, high = int(several.low), int(several.high)
        return IntDistribution(low, high - (high - low) % step, log=several.log, step=step)
    return FloatDistribution(several.low, several.high, log=several.log, step=several.step)


def _rounded(several: Distribution, value: Any) -> Scalar:  # noqa: ANN401 -- as Optuna returns it
    return several.rounded(value) if isinstance(several, Range) else value


def _direction(sweep: Sweep) -> StudyDirection:
    is_least = sweep.direction == "minimise"
    return StudyDirection.MINIMIZE if is_least else StudyDirection.MAXIMIZE


def _turn_seed(seed: int, number: int) -> int:
    """Return a seed for each proposal, the same for every worker."""
    return random.Random(f"{seed} {number}").randrange(2**31)  # noqa: S311 -- no secret
