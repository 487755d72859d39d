"""What methods share that learn from answers which the model writes and a grader scores."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar

from annotated_types import Ge, Gt, Le
from pydantic import AfterValidator, BeforeValidator, Field

from studio.errors import InvalidError
from studio.graders.schema import Grader, LabelModelGrader, ScoreModelGrader, parse_grader
from studio.intake.mapping import RowKind
from studio.methods.base import Preset, quick_preset
from studio.metrics import LOSS, MetricSpec
from studio.protocols import grader_judges
from studio.recipe.base import Conflict, Recipe
from studio.recipe.dotted_keys import merge
from studio.recipe.fields import FieldSpec, Section
from studio.recipe.sections import Data, Epochs, LearningRate, MaxLength, Optimisation

ModelGrader = ScoreModelGrader | LabelModelGrader

_TEXTS = {"input": "{{ sample.output_text }}", "reference": "{{ item.reference_answer }}"}
_EXACT = {"type": "string_check", "name": "exact", "operation": "eq", **_TEXTS}
_SIMILAR = {
    "type": "text_similarity",
    "name": "similar",
    "evaluation_metric": "fuzzy_match",
    **_TEXTS,
}
DEFAULT_GRADER = json.dumps(_SIMILAR)
"""How similar an answer is to the one in the data."""
CLOSE_GRADER = json.dumps(
    {
        "type": "multi",
        "name": "close",
        "graders": {"exact": _EXACT, "similar": _SIMILAR},
        "calculate_output": "0.5 * exact + 0.5 * similar",
    }
)
"""Exact answers count half, and similar ones by how similar they are."""


def _to_json(grader: object) -> object:
    """Return a grader as JSON text; recipes may hold it as an object, too."""
    return json.dumps(grader, ensure_ascii=False) if isinstance(grader, dict) else grader


def _check(text: str) -> str:
    """Return a grader's JSON as it is compared and stored: on one line."""
    try:
        fields = json.loads(text)
        parse_grader(fields)
    except RecursionError as error:
        raise ValueError("This JSON is nested too deeply.") from error
    except InvalidError as error:
        raise ValueError(error.message) from error
    except ValueError as error:
        raise ValueError(f"This is no JSON: {error}.") from error
    return json.dumps(fields, ensure_ascii=False)


GraderJson = Annotated[
    str,
    BeforeValidator(_to_json),
    AfterValidator(_check),
    Field(max_length=1_000_000),
]
"""A grader in OpenAI's JSON, checked."""


class Reward(Section):
    """What makes an answer good: graders score each answer, and the model learns to score high."""

    grader: Annotated[GraderJson, FieldSpec("Grader", is_json=True)] = DEFAULT_GRADER
    """What scores the answers, from 0 to 1, as a grader in OpenAI's JSON. By default, the more
    similar an answer is to the one in the data, the better."""

    held_out_grader: Annotated[
        GraderJson | None, FieldSpec("Held-out grader", advanced=True, is_json=True)
    ] = None
    """Scores validation answers only, and is never trained on. If it falls while the reward rises,
    the model has found a way to score high without getting better."""

    @property
    def asked_models(self) -> dict[str, str]:
        """The models that its graders ask, each with the dotted name of the setting."""
        return {one.model: param for param, one in self.list_model_graders()}

    def list_model_graders(self) -> Iterator[tuple[str, ModelGrader]]:
        """Yield the graders that ask a model, each with the dotted name of its setting."""
        graders = {"reward.grader": self.parse_grader()}
        if (held_out := self.parse_held_out_grader()) is not None:
            graders["reward.held_out_grader"] = held_out
        for param, grader in graders.items():
            for _path, one in grader_judges.list_model_graders(grader):
                yield param, one

    def parse_grader(self) -> Grader:
        """Return the grader to train on."""
        return parse_grader(json.loads(self.grader), "reward.grader")

    def parse_held_out_grader(self) -> Grader | None:
        """Return the grader that is not trained on, if there is one."""
        if self.held_out_grader is None:
            return None
        return parse_grader(json.loads(self.held_out_grader), "reward.held_out_grader")


AnswersPerPrompt = Annotated[int, Ge(2), Le(256), FieldSpec("Answers per prompt")]


class Rollouts(Section):
    """How the model writes the answers that it learns from."""

    answers_per_prompt: AnswersPerPrompt = 8
    """How many answers the model writes to each prompt. They are compared with each other: more
    make the comparison more exact, and take longer."""

    max_new_tokens: Annotated[int, Ge(1), Le(65_536), FieldSpec("Max answer length", "tokens")] = (
        256
    )
    """Longer answers are cut off. Writing takes most of the time: keep this as short as good
    answers allow."""

    temperature: Annotated[
        float, Gt(0), Le(10), FieldSpec("Temperature", advanced=True, usable_range=(0.05, 10))
    ] = 1.0
    """How freely the model tries things. Answers must differ from each other to learn from them."""

    generation_batch_size: Annotated[
        int, Ge(1), Le(65_536), FieldSpec("Answers written at a time", advanced=True)
    ] = 64
    """More are faster, and take more memory while writing."""

    steps_per_generation: Annotated[
        int, Ge(1), Le(64), FieldSpec("Steps per round of writing", "steps", advanced=True)
    ] = 1
    """Write the answers of this many steps at once. The later of these steps learn from answers of
    a slightly older model, which clipping keeps safe."""

    validation_prompts: Annotated[
        int, Ge(1), Le(100_000), FieldSpec("Validation prompts", advanced=True)
    ] = 64
    """How many validation prompts are answered at each validation. More are more exact, and take
    longer."""

    validation_answers: Annotated[
        int, Ge(1), Le(256), FieldSpec("Answers per validation prompt", advanced=True)
    ] = 1
    """How many answers are written to each of them."""


class RolloutOptimisation(Optimisation):
    """How fast and how long the model trains."""

    learning_rate: LearningRate = 1e-5
    """Step size. Reinforcement learning needs small steps: halve it if the reward falls."""

    num_train_epochs: Epochs = 1.0
    """Number of passes over the prompts. Each pass writes new answers."""

    per_device_train_batch_size: Annotated[
        int,
        Ge(1),
        Le(4096),
        FieldSpec(
            "Prompts at a time",
            related=("rollouts.answers_per_prompt", "optimisation.gradient_accumulation_steps"),
        ),
    ] = 4
    """Prompts whose answers are in memory at a time, all answers of each. If memory runs out, lower
    this first."""

    gradient_accumulation_steps: Annotated[
        int, Ge(1), Le(4096), FieldSpec("Gradient accumulation", "steps", advanced=True)
    ] = 2
    """A step learns from this many times the prompts at a time. By default 2 times 4 prompts with 8
    answers each: 64 answers."""


class RolloutData(Data):
    """Only the prompts are read. Graders may look at the other columns."""

    max_length: MaxLength = 1024
    """Prompts with more tokens are left out. Answers have a limit of their own."""


class RolloutRecipe(Recipe):
    """A recipe that learns from the scores of the model's own answers."""

    card_verb: ClassVar[str] = "trained by reinforcement learning"
    card_tags: ClassVar[tuple[str, ...]] = ("reinforcement-learning",)

    reward: Reward = Reward()
    rollouts: Rollouts = Rollouts()
    optimisation: RolloutOptimisation = RolloutOptimisation()
    data: RolloutData = RolloutData()

    @property
    def answers_per_prompt(self) -> int:
        return self.rollouts.answers_per_prompt

    @property
    def answer_tokens(self) -> int:
        return self.rollouts.max_new_tokens

    @property
    def answers_at_once(self) -> int:
        return self.rollouts.generation_batch_size

    @property
    def answers_per_round(self) -> int:
        training, rollouts = self.optimisation, self.rollouts
        prompts = training.per_device_train_batch_size * training.gradient_accumulation_steps
        return prompts * rollouts.answers_per_prompt * rollouts.steps_per_generation

    @property
    def asks_endpoints(self) -> bool:
        return any(map(grader_judges.asks_endpoint, self.reward.asked_models))

    @property
    def reward_models(self) -> Mapping[str, str]:
        asked = self.reward.asked_models.items()
        return {name: param for name, param in asked if grader_judges.reward_run(name) is not None}

    @property
    def keeps_start(self) -> bool:
        return bool(self.reference_weight) and self.adapter.kind == "full"

    @property
    def reference_weight(self) -> float:
        """How strongly the model is kept near the one before training; 0 needs no reference."""
        raise NotImplementedError

    def own_conflicts(self) -> Iterator[Conflict]:
        adapter, variant = self.adapter, self.adapter.lora_variant
        if self.data.packing:
            yield Conflict(
                message="Prompts to answer cannot be packed.",
                hint="Turn off sequence packing.",
                param="data.packing",
            )
        if adapter.kind == "lora" and adapter.lora_dropout:
            yield Conflict(
                message="Dropout makes the model that learns differ from the one that answers.",
                hint="Set LoRA dropout to 0.",
                param="adapter.lora_dropout",
            )
        if variant is not None and variant.reads_data:
            yield Conflict(
                message=f"{variant.title} starts from answers in the data, and these are still to "
                "be written.",
                hint="Choose plain LoRA.",
                param="adapter.variant",
            )
        yield from _judge_conflicts(self.reward)
        if self.reference_weight and ((variant and variant.changes_start) or adapter.continue_from):
            yield Conflict(
                message="The model without its adapter is not the model that this run starts from, "
                "so it cannot be kept near it.",
                hint="Set beta to 0.",
                param="policy.beta",
            )


def _judge_conflicts(reward: Reward) -> Iterator[Conflict]:
    """Yield why models cannot be asked while another one trains."""
    for param, one in reward.list_model_graders():
        if grader_judges.asks_endpoint(one.model):
            continue
        if grader_judges.reward_run(one.model) is None:
            yield Conflict(
                message=f"{one.model} cannot be asked while another model trains.",
                hint=f"Use a model behind an address: {grader_judges.ENDPOINT} and its name, or a "
                "reward model: run: and the number of its run.",
                param=param,
            )
        elif isinstance(one, LabelModelGrader):
            yield Conflict(
                message=f"{one.model} is a reward model, which gives scores, and no labels.",
                hint="Use score_model, or choose another model.",
                param=param,
            )


def reward_of(recipe: Recipe) -> Reward | None:
    """Return what a recipe rewards answers for; None if it does not learn from scores."""
    return recipe.reward if isinstance(recipe, RolloutRecipe) else None


def quick_start(**values: Any) -> Preset:  # noqa: ANN401 -- settings of a recipe
    """Return the preset that shows in about a minute what a method does: 64 answers a step."""
    short = {"max_new_tokens": 32, "validation_prompts": 32, "answers_per_prompt": 8}
    preset = quick_preset(2e-4, epochs=1.0, adapter={"kind": "full"}, rollouts=short, **values)
    few = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 1}
    return replace(preset, values=merge(preset.values, {"optimisation": few}))


def _metric(key: str, title: str, **values: Any) -> MetricSpec:  # noqa: ANN401 -- fields of a MetricSpec
    return MetricSpec(key=key, title=title, **{"source": "train", **values})


EVAL_REWARD = _metric(
    "eval_reward",
    "Validation reward",
    source="eval",
    better="higher",
    shows_memorising=False,
    is_objective=True,
    chart="Reward",
    is_always_drawn=True,
    tile="always",
    openai="valid_mean_reward",
)
REWARD = _metric(
    "reward",
    "Reward",
    better="higher",
    chart="Reward",
    note="Mean score of the answers. The loss says nothing here: watch the reward.",
    is_smoothed=True,
    is_always_drawn=True,
    tile="always",
    openai="train_mean_reward",
)
METRICS = (
    REWARD,
    EVAL_REWARD,
    _metric(
        "best_eval_reward", "Best validation reward", source="studio", better="higher", chart="-"
    ),
    _metric(
        "eval_held_out_score",
        "Held-out grader",
        source="eval",
        better="higher",
        is_objective=True,
        chart="Reward",
    ),
    _metric(
        "no_spread_share",
        "Prompts that teach nothing",
        note="The answers to such a prompt all score alike, so none is better to learn from. "
        "At 100 %, the task is too hard, or solved.",
        is_always_drawn=True,
    ),
    _metric(
        "reward_spread",
        "Spread of rewards",
        note="Standard deviation of the scores of the answers to a prompt: the more they differ, "
        "the more there is to learn.",
        is_always_drawn=True,
    ),
    _metric(
        "answer_tokens",
        "Answer length",
        unit="tokens",
        chart="Answer length",
        note="If it keeps rising, longer answers score higher, whether or not they are better.",
        is_always_drawn=True,
    ),
    _metric(
        "eval_answer_tokens",
        "Validation answer length",
        unit="tokens",
        source="eval",
        chart="Answer length",
    ),
    _metric(
        "cut_off_share",
        "Answers cut off",
        note="Answers that reached the maximum length. If most do, they can hardly score.",
        is_always_drawn=True,
    ),
    _metric(
        "entropy",
        "Entropy",
        unit="nats/token",
        note="How freely the model chooses its words. If it falls to 0, all answers become alike.",
        is_always_drawn=True,
    ),
    _metric(
        "kl",
        "Distance from the start",
        unit="nats/token",
        note="KL divergence from the model before training. Above 1, it may have forgotten how to "
        "write.",
    ),
    _metric(
        "clipped_share",
        "Clipped tokens",
        note="Tokens that have changed too much since they were written to count. 0 unless the "
        "answers of several steps are written at once.",
    ),
    _metric(
        "sampling_gap",
        "Difference between writing and training",
        unit="nats/token",
        note="How much the log-probability of a token differs between writing an answer and "
        "learning from it. Above 0.05, the numeric formats of the two differ too much.",
    ),
    _metric(
        "grader_error_share",
        "Answers without a score",
        note="They teach nothing. The scored answers say why.",
    ),
    replace(
        LOSS,
        unit="",
        tile="",
        is_always_drawn=False,
        note="It stays near 0, whether or not the answers get better.",
    ),
)
"""What is reported of answers and their rewards."""
TRAINS_ON: Mapping[RowKind, str] = {
    "task": "The model answers each prompt several times; graders score the answers, and may look "
    "at the other columns.",
    "conversation": "The model answers what comes before the last answer; graders can compare with "
    "that answer, as `item.reference_answer`.",
}
"""What these methods train on in rows of each kind."""
