"""Generate sample answers during training, at some of its validations."""

from collections.abc import Callable

from transformers import TrainerCallback, TrainerControl, TrainerState

from studio.training.monitoring.reporter import Throughput


class SampleCallback(TrainerCallback):  # type: ignore[misc] # upstream is untyped
    """Generates answers a few times, spread evenly over the run.

    Whether a validation is one of them depends only on its step, so a run that resumes from a
    checkpoint answers at the same steps.
    """

    def __init__(self, times: int, answer: Callable[[], object], throughput: Throughput) -> None:
        self._times = times
        self._answer = answer
        self._throughput = throughput

    def on_evaluate(
        self, _args: object, state: TrainerState, control: TrainerControl, **_rest: object
    ) -> None:
        if control.should_training_stop or state.global_step >= state.max_steps:
            return  # The answers after training follow now.
        if is_due(state.global_step, state.max_steps, state.eval_steps, self._times):
            self._answer()
            self._throughput.resume()


def is_due(step: int, steps: int, eval_steps: int, times: int) -> bool:
    """Whether this validation is the first at or after one of `times` even parts of the run.

    `eval_steps` is the number of steps between two validations.
    """
    return (
        step > 0 and step * (times + 1) // steps > max(step - eval_steps, 0) * (times + 1) // steps
    )
