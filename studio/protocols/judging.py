"""A judgement: a judge reads the answers of two models to the same rows."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from studio.evaluation.judging import Choice, JudgedPair
from studio.protocols.inference_service import GenerationRequest

RESULTS_FILE = "pairs.jsonl"
"""The file in the task's folder to which results are appended, one pair a line."""


BATCH_TOKENS = 16_384
"""Tokens that a reward model reads at once beside a model that trains, with padding."""


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class EndpointJudge(_Message):
    """A model behind an address that speaks OpenAI's API; its key is a secret of the studio."""

    kind: Literal["endpoint"] = "endpoint"
    url: str
    model: str


class ModelJudge(_Message):
    """A model of this studio that holds conversations."""

    kind: Literal["model"] = "model"
    model: GenerationRequest
    """How to load it; it has no prompt."""


class RewardJudge(_Message):
    """A reward model of this studio: the answer with the higher score is better."""

    kind: Literal["reward"] = "reward"
    model: GenerationRequest
    max_length: int
    """Tokens after which it was trained to read no further."""


class Pair(_Message):
    """The answers of both models to one row."""

    position: int
    prompt: str
    reference: str
    base: str
    tuned: str


class JudgementJob(_Message):
    about: str
    """What is judged, for display."""
    judgement: int
    """The id of the judgement that gets the results."""
    judge: Annotated[EndpointJudge | ModelJudge | RewardJudge, Field(discriminator="kind")]
    pairs: list[Pair]


class PairResult(_Message):
    """What a judge said of one pair, in both orders."""

    position: int
    base_first: Choice
    tuned_first: Choice
    base_first_reply: str
    """Its words with the base model's answer as A; for a reward model, the scores."""
    tuned_first_reply: str

    def to_pair(self, *, is_asked: bool = True) -> JudgedPair:
        """Return the result as statistics read it."""
        return JudgedPair(
            position=self.position,
            base_first=self.base_first,
            tuned_first=self.tuned_first,
            is_asked=is_asked,
        )
