"""What a run's numbers say of its number format: each signal with its meaning and what to do."""

from dataclasses import dataclass

from studio.db.tables import Run
from studio.web.i18n import formatting


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """One number of a run's health."""

    name: str
    value: str
    meaning: str


MEANINGS: dict[str, str] = {
    "nonfinite_losses": "Batches so far whose loss was no number. Should stay at 0; lower the "
    "learning rate or choose a wider format.",
    "nonfinite_grads": "Weight tensors whose gradient was no number at the last look. In float16 "
    "now and then, while the loss scale is found; else lower the learning rate.",
    "grad_norm": "The length of the last gradient before clipping. Lower the learning rate if it "
    "grows and grows.",
    "grad_underflow_share": "Gradients of linear layers that are exactly zero: too small for the "
    "format. Above 20 %, leave float16.",
    "update_ratio": "How far one step moved the weights, relative to their size. About 0.001 is "
    "usual; far more is unstable, far less learns slowly.",
    "lost_update_share": "Weights that a step did not change although it meant to: rounding took "
    "it. High is normal where it is kept elsewhere (Kahan, a master copy) or left to chance; else "
    "keep weights in float32.",
    "activation_max": "The largest number that came out of a layer. Float16 ends at 65,504; near "
    "it, choose bfloat16.",
    "logit_max": "The largest score (logit) that the model gives a token, among some it was shown. "
    "Usual is 10 to 50; if it grows and grows, lower the learning rate.",
    "loss_scale": "What the loss is multiplied by so that small gradients survive float16. If it "
    "falls below 1, float16 has failed.",
    "skipped_steps": "Steps left out because a loss or gradient was NaN or infinite: they updated "
    "no weight. A few at the start are usual in float16.",
}
"""The signals in the order in which they are shown."""

CHARTED_SIGNALS = (
    "grad_underflow_share",
    "lost_update_share",
    "update_ratio",
    "activation_max",
    "logit_max",
)
COUNT_SIGNALS = frozenset({"nonfinite_losses", "nonfinite_grads"})
"""Shown as a number: a curve of them is a line at zero."""


def list_signals(run: Run) -> list[Signal]:
    """Return the newest value of whatever the run has told of its numbers."""
    return [
        Signal(
            name=formatting.metric_title(name),
            value=formatting.metric_value(run.metrics[name], name),
            meaning=meaning,
        )
        for name, meaning in MEANINGS.items()
        if name in run.metrics
    ]
