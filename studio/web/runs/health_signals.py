"""Numerical health of a run: each signal with its meaning and what to do."""

from dataclasses import dataclass

from studio.db.tables import Run
from studio.web.i18n import formatting


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """One signal of a run's numerical health."""

    name: str
    value: str
    meaning: str


MEANINGS: dict[str, str] = {
    "nonfinite_losses": "Batches so far whose loss was NaN or infinite. Should stay at 0; if not, "
    "lower the learning rate or choose a wider format.",
    "nonfinite_grads": "Weight tensors whose gradient was NaN or infinite when last checked. "
    "Normal now and then in float16, while the loss scale adjusts; otherwise lower the "
    "learning rate.",
    "grad_norm": "Norm of the last gradient before clipping. If it keeps rising, lower the "
    "learning rate.",
    "grad_underflow_share": "Gradients of linear layers that are exactly zero: too small for the "
    "format. Above 20 %, stop using float16.",
    "update_ratio": "How far one step moved the weights, relative to their size. About 0.001 is "
    "typical; much more is unstable, much less learns slowly.",
    "lost_update_share": "Weights that a step should have changed but rounding left as they were. "
    "High values are normal with compensation (Kahan, a master copy) or stochastic rounding; "
    "otherwise keep the weights in float32.",
    "activation_max": "Largest output of a layer. The float16 maximum is 65,504; if you get close, "
    "use bfloat16.",
    "logit_max": "Largest logit that the model gives a token, over a sample of tokens. Typical "
    "values are 10 to 50; if it keeps rising, lower the learning rate.",
    "loss_scale": "Factor applied to the loss so that small gradients survive in float16. If it "
    "falls below 1, float16 has failed.",
    "skipped_steps": "Steps skipped because a loss or gradient was NaN or infinite: they updated "
    "no weights. A few at the start are normal in float16.",
}
"""What each signal means, in display order."""

CHARTED_SIGNALS = (
    "grad_underflow_share",
    "lost_update_share",
    "update_ratio",
    "activation_max",
    "logit_max",
)
COUNT_SIGNALS = frozenset({"nonfinite_losses", "nonfinite_grads"})
"""Shown as numbers: their curves would be lines at zero."""


def list_signals(run: Run) -> list[Signal]:
    """Return the newest value of each signal that the run has reported."""
    return [
        Signal(
            name=formatting.metric_title(name),
            value=formatting.metric_value(run.metrics[name], name),
            meaning=meaning,
        )
        for name, meaning in MEANINGS.items()
        if name in run.metrics
    ]
