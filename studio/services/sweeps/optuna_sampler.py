"""What Optuna says of a sweep: what to try next, which runs to stop, which knobs decide.

Only a worker asks, and only once there is something to ask: Optuna takes half a second to load.
It keeps a journal of its own for each sweep. The journal follows the runs and never leads: one
that is missing, damaged or of another mind is made again from them.
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
"""How many runs are drawn at random first, for there to be something to go by; at most a third."""
PRUNER_STARTUP_TRIALS = 5
"""How many runs must have ended before one is stopped for being worse than their median."""
PRUNER_WARMUP_STEPS = 1
"""The first evaluation of a run says little: nothing is stopped for it."""
IMPORTANCE_QUANTILE = 0.25
"""Knobs are important that decide whether a run is among this share of the best."""

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
    """Runs to stop, by id."""
    importance: dict[str, float] = field(default_factory=dict)


def ask_optuna(sweep: Sweep, trials: Sequence[Trial], path: Path, wanted: int) -> SamplerResult:
    """Ask for the next settings, the hopeless runs, and how much each knob decides."""
    study = _sync_study(sweep, trials, path)
    return SamplerResult(
        proposed=_propose(sweep, study, wanted) if wanted else [],
        to_prune=list(_find_runs_to_prune(study)) if sweep.is_pruning else [],
        importance=_importance(study),
    )


def _sync_study(sweep: Sweep, trials: Sequence[Trial], path: Path) -> optuna.Study:
    """Return the study of the journal, with all that the runs have told meanwhile."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        study = _open_study(sweep, path)
    # What reading a damaged journal ends in, or one that a folder has taken the place of.
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
    # One worker alone writes it; a lock can only be that of one that was killed.
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
    """Tell whether the runs may have told what is in the journal, and have told more since."""
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
    handle = Handle(study, noted._trial_id)  # noqa: SLF001 -- there is no other way to a trial
    for place, value in _intermediate_values(trial).items():
        if place not in noted.intermediate_values:
            handle.report(value, place)
    state = _trial_state(trial)
    if state.is_finished():
        study.tell(noted.number, trial.value if state is TrialState.COMPLETE else None, state)


def _intermediate_values(trial: Trial) -> dict[int, float]:
    """Return what a run has told, evaluation by evaluation: steps differ where batches do."""
    return {
        place: float("nan") if value is None else value
        for place, value in enumerate(trial.intermediate_values)
    }


def _trial_state(trial: Trial) -> TrialState:
    # One that ended without a number has told nothing.
    if trial.state == "done" and trial.value is None:
        return TrialState.FAIL
    return _STATES[trial.state]


def _propose(sweep: Sweep, study: optuna.Study, wanted: int) -> list[TrialSettings]:
    """Return settings that nobody has tried, those that are promising first."""
    # On a copy: what is asked here is only tried if the runs say so.
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
    """Return what was never tried, at random: the search has closed in on what it knows."""
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
    """Keep to itself what it says of few trials: the page says how many there are."""
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


def _rounded(several: Distribution, value: Any) -> Scalar:  # noqa: ANN401 -- as Optuna gives it
    return several.rounded(value) if isinstance(several, Range) else value


def _direction(sweep: Sweep) -> StudyDirection:
    is_least = sweep.direction == "minimise"
    return StudyDirection.MINIMIZE if is_least else StudyDirection.MAXIMIZE


def _turn_seed(seed: int, number: int) -> int:
    """Give each turn its own luck, the same whoever takes it."""
    return random.Random(f"{seed} {number}").randrange(2**31)  # noqa: S311 -- no secret
