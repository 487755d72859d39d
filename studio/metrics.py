"""The metrics of a run, each declared once.

Charts, tables, comparisons, sweeps, exports and the OpenAI-compatible API read what they need from
here. A training method declares its own metrics in `studio/methods/<name>`;
`studio.methods.METRICS` has them all.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

Direction = Literal["lower", "higher", ""]
Source = Literal["train", "eval", "studio"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSpec:
    """What a metric means, how it compares and how it is drawn.

    Its key implies how its values are written: `…_bytes`, `train_seconds`, or as a percentage
    (see `is_share`).
    """

    key: str
    title: str
    unit: str = ""
    """The unit on the axis of its chart, unless its values are written with one."""
    source: Source = "studio"
    """What reports it: the trainer's logs, its evaluations, or the studio itself."""
    better: Direction = ""
    """The better direction, or empty if neither is."""
    starts_at_zero: bool = False
    """Whether it is 0 before training: then a change is absolute, not relative."""
    guess: float | None = None
    """What guessing reaches, of a metric that is better the higher it is; None if it has no such
    value."""
    rounding_key: str = ""
    """The metric that says how much of a value may be rounding error, if one does."""
    shows_memorising: bool = True
    """Whether it gets worse again if the model memorises its training rows. Scores of answers that
    the model draws by chance also go up and down by themselves."""
    is_noiseless: bool = False
    """Whether it hardly varies between repeats, so that any difference counts."""
    is_per_step: bool = False
    """Whether it compares only between runs with equally many examples per step."""
    is_objective: bool = False
    """Whether a sweep can optimise it."""
    chart: str = ""
    """The chart that draws it: those with equal titles share one. Empty for a chart of its own,
    which appears once the metric is reported; `-` for none."""
    note: str = ""
    """What to look for in its chart, in a sentence or two: that of the first metric counts."""
    is_smoothed: bool = False
    """Whether its chart has a smoothed curve."""
    is_always_drawn: bool = False
    """Whether its chart shows before the metric is reported."""
    tile: Literal["", "always", "result"] = ""
    """Whether the run's page shows its value as a tile: always, or once there is a value."""
    meaning: str = ""
    """For a signal of numerical health: what it says, and what to do."""
    openai: str = ""
    """Its name in the events and checkpoints of OpenAI's API."""
    openai_column: str = ""
    """Its column in the results file of OpenAI's API, if that differs."""


def format_value(value: float, key: str, digits: int = 4) -> str:
    """Format a value for a sentence, in the way that the key of its metric implies."""
    return f"{100 * value:.3g} %" if is_share(key) else with_minus(f"{value:.{digits}g}")


SHARE_ENDINGS = ("_share", "accuracy", "_f1", "_precision", "_recall", "_calibration_error")
"""How the keys of metrics end whose values are parts of 1; `formatting.js` has the same list."""


def is_share(key: str) -> bool:
    """Return whether the values of a metric are parts of 1."""
    return key.endswith(SHARE_ENDINGS)


def with_minus(digits: str) -> str:
    """Return a number with a minus sign, not a hyphen, in front; exponents stay as in code."""
    return f"\N{MINUS SIGN}{digits[1:]}" if digits.startswith("-") else digits


LOSS = MetricSpec(
    key="loss",
    unit="nats/token",
    tile="always",
    title="Training loss",
    source="train",
    better="lower",
    chart="Loss",
    is_smoothed=True,
    is_always_drawn=True,
    openai="train_loss",
)
EVAL_LOSS = MetricSpec(
    key="eval_loss",
    unit="nats/token",
    tile="always",
    title="Validation loss",
    source="eval",
    better="lower",
    is_objective=True,
    chart="Loss",
    is_always_drawn=True,
    openai="valid_loss",
)
TOKEN_ACCURACY = MetricSpec(
    key="mean_token_accuracy",
    title="Token accuracy",
    source="train",
    better="higher",
    chart="Token accuracy",
    openai="train_mean_token_accuracy",
    openai_column="train_accuracy",
)
EVAL_TOKEN_ACCURACY = MetricSpec(
    key="eval_mean_token_accuracy",
    title="Validation token accuracy",
    source="eval",
    better="higher",
    is_objective=True,
    chart="Token accuracy",
    openai="valid_mean_token_accuracy",
)
REWARD_ROUNDING = "eval_reward_rounding"
"""The key of what 16-bit formats do to rewards; methods with rewards draw it beside these."""

BEST_EVAL_LOSS = MetricSpec(
    key="best_eval_loss",
    title="Best validation loss",
    better="lower",
    chart="-",
)
_TRAINING = (
    MetricSpec(key="learning_rate", title="Learning rate", source="train", is_always_drawn=True),
    MetricSpec(
        key="grad_norm",
        title="Gradient norm",
        source="train",
        is_always_drawn=True,
        meaning="Norm of the last gradient before clipping. If it keeps rising, lower the "
        "learning rate.",
    ),
)
_SPEED = (
    MetricSpec(
        key="tokens_per_second",
        unit="tokens/s",
        tile="always",
        title="Tokens per second",
        better="higher",
        is_objective=True,
        is_always_drawn=True,
    ),
    MetricSpec(key="tokens", title="Tokens", chart="-"),
    MetricSpec(
        key="step_seconds",
        title="Seconds per step",
        unit="s",
        better="lower",
        is_per_step=True,
    ),
    MetricSpec(
        key="train_seconds", title="Training time", better="lower", chart="-", tile="result"
    ),
    MetricSpec(
        key="peak_memory_bytes",
        tile="always",
        title="Peak memory",
        better="lower",
        is_noiseless=True,
        is_objective=True,
    ),
)
_HEALTH = (
    MetricSpec(
        key="nonfinite_losses",
        title="NaN or infinite losses",
        chart="-",
        meaning="Batches so far whose loss was NaN or infinite. Should stay at 0; if not, "
        "lower the learning rate or choose a wider format.",
    ),
    MetricSpec(
        key="nonfinite_grads",
        title="NaN or infinite gradients",
        chart="-",
        meaning="Weight tensors whose gradient was NaN or infinite when last checked. "
        "Normal now and then in float16, while the loss scale adjusts; otherwise lower the "
        "learning rate.",
    ),
    MetricSpec(
        key="grad_underflow_share",
        title="Gradients rounded to zero",
        meaning="Gradients of linear layers that are exactly zero: too small for the "
        "format. Above 20 %, stop using float16.",
    ),
    MetricSpec(
        key="update_ratio",
        title="Relative update size",
        meaning="How far one step moved the weights, relative to their size. About 0.001 is "
        "typical; much more is unstable, much less learns slowly.",
    ),
    MetricSpec(
        key="lost_update_share",
        title="Updates lost to rounding",
        meaning="Weights that a step should have changed but rounding left as they were. "
        "High values are normal with compensation (Kahan, a master copy) or stochastic rounding; "
        "otherwise keep the weights in float32.",
    ),
    MetricSpec(
        key="activation_max",
        title="Max activation",
        meaning="Largest output of a layer. The float16 maximum is 65,504; if you get close, "
        "use bfloat16.",
    ),
    MetricSpec(
        key="logit_max",
        title="Max logit",
        meaning="Largest logit that the model gives a token, over a sample of tokens. Typical "
        "values are 10 to 50; if it keeps rising, lower the learning rate.",
    ),
    MetricSpec(
        key="loss_scale",
        title="Loss scale",
        meaning="Factor applied to the loss so that small gradients survive in float16. If it "
        "falls below 1, float16 has failed.",
    ),
    MetricSpec(
        key="skipped_steps",
        title="Skipped steps",
        better="lower",
        is_noiseless=True,
        meaning="Steps skipped because a loss or gradient was NaN or infinite: they updated "
        "no weights. A few at the start are normal in float16.",
    ),
)
_EXPORT_TITLES = {
    "rest": "Non-quantised weights",
    "weight_bytes": "Weight memory",
    "weights": "Weights",
    "changed_weights": "Weights changed",
    "kept_weights": "Weights kept in float32",
    "overflowed_weights": "Became infinite",
    "underflowed_weights": "Became zero",
    "max_relative_change": "Max relative change",
    "mean_relative_change": "Mean relative change",
    "loss_before": "Loss as trained",
    "loss_after": "Loss as exported",
    "perplexity_before": "Perplexity before",
    "perplexity_after": "Perplexity after",
    "validation_tokens": "Tokens measured",
}

SHARED = (
    *_TRAINING,
    *_SPEED,
    MetricSpec(key="rating", title="Rating, 1 to 5", better="higher", chart="-", tile="result"),
    *_HEALTH,
    *(MetricSpec(key=key, title=title, chart="-") for key, title in _EXPORT_TITLES.items()),
)
"""Metrics that do not depend on the method."""


@dataclass(frozen=True, slots=True)
class MethodMetrics:
    """The metrics of a training method."""

    own: tuple[MetricSpec, ...]
    """What its trainer and evaluations report, besides what all methods report."""
    objective: MetricSpec
    """The metric of `own` that picks the best weights, ends runs early and guides sweeps."""

    @property
    def all(self) -> tuple[MetricSpec, ...]:
        """Everything that a run can report, in display order."""
        return (*self.own, *SHARED)

    def unit(self, key: str) -> str:
        """Return the unit of a metric; empty if it has none, or is not one of the method."""
        return next((spec.unit for spec in self.all if spec.key == key), "")

    def keys(self, source: Source) -> tuple[str, ...]:
        """Return the keys of the metrics that come from one source, in display order."""
        return tuple(spec.key for spec in self.all if spec.source == source)


NEXT_TOKEN = MethodMetrics(
    (LOSS, EVAL_LOSS, BEST_EVAL_LOSS, TOKEN_ACCURACY, EVAL_TOKEN_ACCURACY), objective=EVAL_LOSS
)
"""Of methods that learn to predict the next token."""


def catalogue(methods: Iterable[MethodMetrics]) -> Mapping[str, MetricSpec]:
    """Return all metrics by key, those of the methods first, in display order.

    Of a key that several methods declare, the first one's declaration counts.
    """
    found: dict[str, MetricSpec] = {}
    for spec in (*(spec for metrics in methods for spec in metrics.own), *SHARED):
        found.setdefault(spec.key, spec)
    return found
