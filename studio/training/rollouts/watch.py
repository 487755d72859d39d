"""Alarms of reinforcement learning: what its loss does not say."""

from collections.abc import Iterator, Mapping
from typing import ClassVar

from studio.training.monitoring.divergence_guard import Alarm

PATIENCE = 5
"""Logging steps in a row after which something is no accident."""
MAX_DIVERGENCE = 1.0
"""Distance from the start, in nats per token, at which a model has become another one."""
MAX_CUT_OFF = 0.95
MAX_GAP = 0.05
"""Difference of a token's log-probability between writing and learning, in nats."""
MAX_ERRORS = 0.05
FATAL_ERRORS = 0.5
"""Shares of answers that graders may fail to score: for an alarm, and for the end of the run."""
MIN_CHANGE = 0.05
"""The least change of a mean score that counts."""


class RolloutWatch:
    """Looks at what is logged, and says what is wrong."""

    SAVED_AS: ClassVar[str] = "RolloutWatch"
    STATE_ATTRIBUTES: ClassVar[tuple[str, ...]] = ("streaks", "rewards", "held_out")

    def __init__(self) -> None:
        self.streaks: dict[str, int] = {}
        """For each sign of trouble, how many logging steps in a row have shown it."""
        self.rewards: list[float] = []
        """The first validation reward, the best one, and the latest."""
        self.held_out: list[float] = []
        """The same of the grader that is not trained on."""

    def add_validation(self, metrics: Mapping[str, float]) -> None:
        """Take the scores of a validation."""
        self.rewards = _first_best_latest(self.rewards, metrics["eval_reward"])
        if (score := metrics.get("eval_held_out_score")) is not None:
            self.held_out = _first_best_latest(self.held_out, score)

    def check(self, metrics: Mapping[str, float]) -> Iterator[Alarm]:
        """Yield what is wrong, from the metrics of a logging step."""
        if "grader_error_share" in metrics:  # Answers were written since the last logging step.
            yield from self._score_alarms(metrics)
            yield from self._answer_alarms(metrics)
        if self._lasts("gap", metrics.get("sampling_gap", 0.0) > MAX_GAP):
            yield Alarm(
                code="sampling_differs",
                message="The model computes differently when it writes than when it learns: by "
                f"{metrics['sampling_gap']:.2g} nats per token.",
                hint="Choose float32, or float16 mixed, which rounds less than bfloat16.",
            )
        if self._is_hacked:
            yield Alarm(
                code="reward_hacked",
                message="The reward rises while the held-out grader falls, from "
                f"{self.held_out[1]:.2f} to {self.held_out[2]:.2f}: the model has found a way to "
                "score high without getting better.",
                hint="Read the latest answers, and make the grader stricter, or keep the model "
                "nearer to its start with beta.",
            )

    def _score_alarms(self, metrics: Mapping[str, float]) -> Iterator[Alarm]:
        if self._lasts("no_spread", metrics.get("no_spread_share", 1.0) == 1):
            is_solved = metrics.get("reward", 0.0) > 1 / 2
            yield Alarm(
                code="no_spread",
                message="All answers to a prompt get the same reward, so the model learns nothing.",
                hint="The task is solved: stop here, or use harder prompts."
                if is_solved
                else "Use easier prompts, a grader with finer scores, or more answers per prompt.",
            )
        errors = metrics["grader_error_share"]
        if errors > MAX_ERRORS:
            yield Alarm(
                code="grader_failed",
                message=f"Graders could not score {100 * errors:.0f} % of the answers.",
                hint="Nothing is learned from them. Look at the errors in the run's answers.",
                ends_run=self._lasts("errors", errors > FATAL_ERRORS),
            )

    def _answer_alarms(self, metrics: Mapping[str, float]) -> Iterator[Alarm]:
        if self._lasts("cut_off", metrics["cut_off_share"] > MAX_CUT_OFF):
            yield Alarm(
                code="answers_cut_off",
                message=f"Too long: {100 * metrics['cut_off_share']:.0f} % of the answers are cut "
                "off before they end.",
                hint='Raise "Max answer length", or reward short answers.',
            )
        if self._lasts("kl", metrics.get("kl", 0.0) > MAX_DIVERGENCE):
            yield Alarm(
                code="kl_runaway",
                message=f"The model is {metrics['kl']:.2g} nats per token away from where it "
                "started: it may have forgotten how to write.",
                hint="Lower the learning rate, or raise beta.",
            )

    @property
    def _is_hacked(self) -> bool:
        if not self.held_out:
            return False
        (first, _, reward), (_, best, score) = self.rewards, self.held_out
        return reward > first + MIN_CHANGE and score < best - MIN_CHANGE

    def _lasts(self, sign: str, is_shown: bool) -> bool:  # noqa: FBT001 -- what it is about
        """Return whether a sign has been shown at enough logging steps in a row."""
        self.streaks[sign] = self.streaks.get(sign, 0) + 1 if is_shown else 0
        return self.streaks[sign] >= PATIENCE


def _first_best_latest(scores: list[float], score: float) -> list[float]:
    if not scores:
        return [score, score, score]
    return [scores[0], max(scores[1], score), score]
