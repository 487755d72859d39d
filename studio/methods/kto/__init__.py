"""Learning from ratings: each answer is rated good or bad by itself."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, ClassVar, Literal

from annotated_types import Gt, Le

from studio.methods.base import Method, full_preset, lora_preset, quick_preset
from studio.methods.reference import ReferenceRecipe, ReferenceScores, rounding_metric
from studio.metrics import EVAL_LOSS, LOSS, REWARD_ROUNDING, MethodMetrics, MetricSpec
from studio.recipe.base import Conflict
from studio.recipe.fields import FieldSpec, Section

LossName = Literal["kto", "apo_zero_unpaired", "bco"]

Weight = Annotated[float | None, Gt(0), Le(1000)]


class Rating(Section):
    """How strongly good answers are preferred, and what keeps the model near where it began."""

    loss_type: Annotated[
        LossName,
        FieldSpec(
            "Rating loss",
            advanced=True,
            choice_titles={"kto": "KTO", "apo_zero_unpaired": "APO zero", "bco": "BCO"},
        ),
    ] = "kto"
    """KTO suits almost every dataset. APO zero is for good answers that are better than what the
    model writes; BCO compares each answer with the average."""

    beta: Annotated[float, Gt(0), Le(100), FieldSpec("Beta")] = 0.1
    """How close the model stays to where it began: lower moves further."""

    good_weight: Annotated[Weight, FieldSpec("Weight of good answers", advanced=True)] = None
    """How much each good answer counts. Leave empty so that good and bad answers count equally as
    a whole, however many there are of each."""

    bad_weight: Annotated[Weight, FieldSpec("Weight of bad answers", advanced=True)] = None
    """How much each bad answer counts. Set both weights, or neither."""

    reference: ReferenceScores = "automatic"
    """The reference is the model before training. Scoring all answers once saves time in each
    step; at every step starts sooner. A full fine-tune always scores them once."""

    @property
    def has_divergence(self) -> bool:
        """Whether the loss depends on how far the model has moved as a whole."""
        return self.loss_type == "kto"


class KTORecipe(ReferenceRecipe):
    """Learn from ratings: the model learns from answers that are rated good or bad."""

    card_verb: ClassVar[str] = "aligned by ratings"
    card_tags: ClassVar[tuple[str, ...]] = ("preference-optimization",)
    reads_bad_answers: ClassVar[bool] = True
    reference_param: ClassVar[str] = "rating.reference"

    method: Literal["kto"] = "kto"
    rating: Rating = Rating()

    @property
    def reference_scores(self) -> str:
        return self.rating.reference

    def own_conflicts(self) -> Iterator[Conflict]:
        if (self.rating.good_weight is None) != (self.rating.bad_weight is None):
            missing = "good" if self.rating.good_weight is None else "bad"
            yield Conflict(
                message="Only one of the two weights is set.",
                hint="Set the weights of good and of bad answers, or leave both empty.",
                param=f"rating.{missing}_weight",
            )
        yield from super().own_conflicts()


def _reward(key: str, title: str, chart: str) -> MetricSpec:
    source: Literal["eval", "train"] = "eval" if key.startswith("eval_") else "train"
    note = "Both may fall: watch the margin between good and bad answers."
    return MetricSpec(key=key, title=title, unit="nats", source=source, chart=chart, note=note)


EVAL_MARGIN = MetricSpec(
    key="eval_rating_margin",
    title="Validation rating margin",
    unit="nats",
    source="eval",
    better="higher",
    is_objective=True,
    chart="Rating margin",
    note="How far good answers are ahead of bad ones. It should rise.",
    is_always_drawn=True,
    tile="always",
    starts_at_zero=True,
    guess=0.0,
    rounding_key=REWARD_ROUNDING,
)
"""How much more the model has raised good answers than bad ones, on average."""
MARGIN = MetricSpec(
    key="rating_margin",
    title="Rating margin",
    unit="nats",
    source="train",
    better="higher",
    chart="Rating margin",
)
BEST_EVAL_MARGIN = MetricSpec(
    key="best_eval_rating_margin", title="Best validation rating margin", better="higher", chart="-"
)
DIVERGENCE = MetricSpec(
    key="divergence",
    title="Divergence from the start",
    unit="nats",
    source="train",
    chart="Divergence from the start",
    is_always_drawn=True,
    note="How far the model has moved from where it began. If it keeps rising, lower the learning "
    "rate or raise beta.",
    meaning="How far the model has moved from where it began, on answers to other prompts. If it "
    "keeps rising, lower the learning rate or raise beta.",
)

METHOD = Method(
    name="kto",
    title="Ratings (KTO)",
    purpose="Learn from ratings",
    summary="Train on answers that are rated good or bad, each by itself.",
    recipe=KTORecipe,
    metrics=MethodMetrics(
        (
            EVAL_MARGIN,
            MARGIN,
            BEST_EVAL_MARGIN,
            rounding_metric(MARGIN.chart),
            *(replace(spec, unit="") for spec in (LOSS, EVAL_LOSS)),
            _reward("eval_good_reward", "Good answers", "Reward of the answers"),
            _reward("eval_bad_reward", "Bad answers", "Reward of the answers"),
            DIVERGENCE,
        ),
        objective=EVAL_MARGIN,
    ),
    trains_on={
        "judged": "KTO makes answers rated good more likely, and those rated bad less likely.",
        "preference": "KTO reads each pair as two answers: the better is rated good, the other "
        "bad.",
    },
    ignores={
        "preference": "Which answers belong together is not used: DPO compares them directly.",
        "ranked": "Only the best and the worst answer of each row are read.",
    },
    presets=(quick_preset(1e-3), lora_preset(), full_preset(5e-7)),
    examples_per_row={"preference": 2},
)
