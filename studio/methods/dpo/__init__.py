"""Direct preference optimisation: the model learns which of two answers is better."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Gt, Le, Lt

from studio.methods.base import Method, full_preset, lora_preset, quick_preset
from studio.methods.reference import ReferenceRecipe, ReferenceScores, rounding_metric
from studio.metrics import EVAL_LOSS, LOSS, REWARD_ROUNDING, MethodMetrics, MetricSpec
from studio.recipe.base import Conflict
from studio.recipe.fields import FieldSpec, Section

LossName = Literal[
    "sigmoid",
    "sigmoid_norm",
    "hinge",
    "ipo",
    "robust",
    "exo_pair",
    "nca_pair",
    "bco_pair",
    "sppo_hard",
    "aot",
    "aot_unpaired",
    "apo_zero",
    "apo_down",
    "simpo",
    "cpo",
    "orpo",
]

REFERENCE_FREE: frozenset[LossName] = frozenset({"simpo", "cpo", "orpo"})
"""Losses that compare the two answers without a reference model."""

ANY_DIVERGENCE: frozenset[LossName] = frozenset(
    {"sigmoid", "sigmoid_norm", "hinge", "ipo", "robust", "exo_pair"}
)
"""Losses that are defined for other divergences than reverse KL."""

SORTS_THE_BATCH: frozenset[LossName] = frozenset({"aot", "aot_unpaired"})
"""Losses that do not belong to single pairs."""

_NEEDS_SMOOTHING = "exo_pair"
_MAX_ROBUST_SMOOTHING = 0.5


class Preference(Section):
    """How strongly the better answer is preferred, and what keeps the model near where it began."""

    loss_type: Annotated[
        LossName,
        FieldSpec(
            "Preference loss",
            advanced=True,
            choice_titles={
                "sigmoid": "DPO",
                "sigmoid_norm": "DPO per token",
                "hinge": "Hinge (SLiC)",
                "ipo": "IPO",
                "robust": "Robust DPO",
                "exo_pair": "EXO",
                "nca_pair": "NCA",
                "bco_pair": "BCO on pairs",
                "sppo_hard": "SPPO",
                "aot": "AOT",
                "aot_unpaired": "AOT, unpaired",
                "apo_zero": "APO zero",
                "apo_down": "APO down",
                "simpo": "SimPO, no reference",
                "cpo": "CPO, no reference",
                "orpo": "ORPO, no reference",
            },
        ),
    ] = "sigmoid"
    """DPO suits almost every dataset. APO down is for data where even the chosen answers are worse
    than what the model writes: it makes both less likely."""

    beta: Annotated[float, Gt(0), Le(100), FieldSpec("Beta")] = 0.1
    """How close the model stays to where it began: lower moves further. Typical: 0.1 for DPO, 2 for
    SimPO."""

    label_smoothing: Annotated[float, Ge(0), Lt(1), FieldSpec("Label smoothing", advanced=True)] = (
        0.0
    )
    """The share of pairs whose better answer is probably marked wrong. EXO needs more than 0."""

    target_margin: Annotated[
        float, Ge(0), Le(100), FieldSpec("Target margin", "nats/token", advanced=True)
    ] = 0.5
    """SimPO only: by how much the mean log-probability of the better answer should lead."""

    divergence: Annotated[
        Literal["reverse_kl", "forward_kl", "js", "alpha"],
        FieldSpec(
            "Divergence",
            advanced=True,
            choice_titles={
                "reverse_kl": "Reverse KL",
                "forward_kl": "Forward KL",
                "js": "Jensen-Shannon",
                "alpha": "Alpha",
            },
        ),
    ] = "reverse_kl"
    """How the distance to the reference is measured. Reverse KL is that of DPO; the others keep
    more of what the model could write before."""

    divergence_alpha: Annotated[
        float, Gt(0), Lt(1), FieldSpec("Alpha of the divergence", advanced=True)
    ] = 0.5
    """For the alpha divergence only: near 1 it is reverse KL, near 0 forward KL."""

    tail_weight: Annotated[
        float, Ge(0), Le(1), FieldSpec("Weight of extra length", advanced=True)
    ] = 1.0
    """How much the part of an answer counts that goes beyond the length of the other (LD-DPO).
    Lower it if the model learns to write more instead of better."""

    confidence_weighted: Annotated[bool, FieldSpec("Weigh by confidence", advanced=True)] = False
    """Answers that the model would hardly write itself count less (WPO)."""

    sft_weight: Annotated[float, Ge(0), Le(100), FieldSpec("SFT weight", advanced=True)] = 0.0
    """Adds the supervised loss of the chosen answers with this weight, so that they do not become
    less likely. ORPO and CPO need 1."""

    reference: ReferenceScores = "automatic"
    """The reference is the model before training. Scoring all answers once saves a quarter of the
    time of each step; at every step starts sooner. A full fine-tune always scores them once."""


class DPORecipe(ReferenceRecipe):
    """Learn from comparisons: the model reads pairs of answers, and learns to prefer the better."""

    card_verb: ClassVar[str] = "aligned by preferences"
    card_tags: ClassVar[tuple[str, ...]] = ("preference-optimization",)

    method: Literal["dpo"] = "dpo"
    preference: Preference = Preference()
    reference_param: ClassVar[str] = "preference.reference"

    @property
    def reference_scores(self) -> str:
        return self.preference.reference

    @property
    def has_reference(self) -> bool:
        return self.preference.loss_type not in REFERENCE_FREE

    def own_conflicts(self) -> Iterator[Conflict]:
        yield from _loss_conflicts(self.preference)
        yield from super().own_conflicts()


def _loss_conflicts(preference: Preference) -> Iterator[Conflict]:
    if preference.loss_type == _NEEDS_SMOOTHING and not preference.label_smoothing:
        yield Conflict(
            message="EXO is undefined without label smoothing.",
            hint="Set label smoothing to 0.001 or more.",
            param="preference.label_smoothing",
        )
    if preference.loss_type == "robust" and preference.label_smoothing >= _MAX_ROBUST_SMOOTHING:
        yield Conflict(
            message="Robust DPO needs label smoothing below 0.5: from there on, labels are noise.",
            hint="Set label smoothing to the share of pairs that are marked wrong.",
            param="preference.label_smoothing",
        )
    if preference.divergence != "reverse_kl" and preference.loss_type not in ANY_DIVERGENCE:
        yield Conflict(
            message="This loss is defined for reverse KL only.",
            hint="Choose reverse KL, or another loss.",
            param="preference.divergence",
        )
    if preference.confidence_weighted and preference.loss_type in SORTS_THE_BATCH:
        yield Conflict(
            message="AOT compares sorted batches, so its pairs cannot be weighted.",
            hint="Turn off weighing by confidence, or choose another loss.",
            param="preference.confidence_weighted",
        )
    if preference.loss_type in REFERENCE_FREE and preference.reference != "automatic":
        yield Conflict(
            message="This loss has no reference to score.",
            hint="Leave the reference scores at Automatic.",
            param="preference.reference",
        )


PREFERRED = MetricSpec(
    key="preferred_share",
    title="Preference accuracy",
    source="train",
    better="higher",
    chart="Preference accuracy",
)
EVAL_PREFERRED = MetricSpec(
    key="eval_preferred_share",
    title="Validation preference accuracy",
    source="eval",
    better="higher",
    guess=0.5,
    is_objective=True,
    chart="Preference accuracy",
    note="The share of pairs whose better answer the model prefers. 50 % is chance.",
    is_always_drawn=True,
    tile="always",
)
MARGIN = MetricSpec(
    key="reward_margin",
    title="Reward margin",
    unit="nats",
    source="train",
    better="higher",
    chart="Reward margin",
)
EVAL_MARGIN = MetricSpec(
    key="eval_reward_margin",
    title="Validation reward margin",
    unit="nats",
    source="eval",
    better="higher",
    is_objective=True,
    chart="Reward margin",
    note="How far the better answers are ahead of the worse ones. It should rise.",
    is_always_drawn=True,
    rounding_key=REWARD_ROUNDING,
)
_LIKELIHOOD = tuple(
    MetricSpec(
        key=key,
        title=title,
        unit="nats",
        source="eval",
        chart="Log-probability of the answers",
        note="Both may fall: watch the margin. If the chosen answers fall far, raise the SFT "
        "weight.",
    )
    for key, title in (
        ("eval_chosen_logps", "Chosen answers"),
        ("eval_rejected_logps", "Rejected answers"),
    )
)
BEST_EVAL_PREFERRED = MetricSpec(
    key="best_eval_preferred_share",
    title="Best validation preference accuracy",
    better="higher",
    chart="-",
)

_KEEPS_ANSWERS = {"sft_weight": 0.2}
"""Without it, the starter prefers better answers after a minute, and half of its own are empty."""

METHOD = Method(
    name="dpo",
    title="Preference (DPO)",
    purpose="Learn from comparisons",
    summary="Train on pairs of answers to the same prompt, of which one is better.",
    recipe=DPORecipe,
    metrics=MethodMetrics(
        (
            EVAL_PREFERRED,
            PREFERRED,
            BEST_EVAL_PREFERRED,
            EVAL_MARGIN,
            MARGIN,
            rounding_metric(MARGIN.chart),
            *(replace(spec, unit="") for spec in (LOSS, EVAL_LOSS)),
            *_LIKELIHOOD,
        ),
        objective=EVAL_PREFERRED,
    ),
    trains_on={
        "preference": "DPO makes the better answer more likely than the worse one; the prompt is "
        "only context."
    },
    ignores={
        "ranked": "Only the best and the worst answer of each row are compared. The answers "
        "between them are not used."
    },
    presets=(
        quick_preset(3e-3, preference=_KEEPS_ANSWERS),
        lora_preset(),
        full_preset(5e-7),
    ),
    keeps_answers={"preference": _KEEPS_ANSWERS},
    sequences_per_row=2,
    openai_type="dpo",
    openai_hyperparameters={"beta": "preference.beta"},
)
