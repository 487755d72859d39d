"""Answers on the way: what the model says while it still learns, at some of its validations."""

from collections.abc import Callable

from transformers import TrainerCallback, TrainerControl, TrainerState

from studio.training.monitoring.reporter import Throughput


class SampleCallback(TrainerCallback):  # type: ignore[misc] # upstream is untyped
    """Has the model answer a few times, spread evenly over the run.

    Whether a validation is one of those is told by its step alone: a run that goes on from a
    checkpoint answers where it would have answered.
    """

    def __init__(self, times: int, answer: Callable[[], object], pace: Throughput) -> None:
        self._times = times
        self._answer = answer
        self._throughput = pace

    def on_evaluate(
        self, _args: object, state: TrainerState, control: TrainerControl, **_rest: object
    ) -> None:
        if control.should_training_stop or state.global_step >= state.max_steps:
            return  # The answers after training come now.
        if is_due(state.global_step, state.max_steps, state.eval_steps, self._times):
            self._answer()
            self._throughput.resume()


def is_due(step: int, steps: int, every: int, times: int) -> bool:
    """Whether this validation is the first at or after one of `times` even parts of the run.

    `every` is the number of steps between two validations.
    """
    return step > 0 and step * (times + 1) // steps > max(step - every, 0) * (times + 1) // steps
