"""Models that end in scores instead of tokens: their output layer, computed in float32.

The config says what a model ends in: `architectures` names its class, as in saved models. A model
that gives vectors ends in its last hidden states, which any model has: its config says so itself.
"""

import inspect
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING,
    MODEL_MAPPING,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.modeling_layers import GenericForTokenClassification

from studio.errors import TrainingError
from studio.weights import encoders, image_text
from studio.weights.architectures import CAUSAL_MODEL_HINT

_SUFFIX, _TOKEN_SUFFIX = "ForSequenceClassification", "ForTokenClassification"
_STANDARD_DEVIATION = 0.02

ProblemType = Literal[
    "regression",
    "single_label_classification",
    "multi_label_classification",
    "token_classification",
    "vectors",
]
"""What the scores of a text mean, or those of each token; with the last one, there are none."""


@dataclass(frozen=True, slots=True)
class Head:
    """The output layer that a method gives its model: one score per name."""

    names: tuple[str, ...]
    problem_type: ProblemType

    @property
    def scores_tokens(self) -> bool:
        """Whether each token has scores of its own."""
        return self.problem_type == "token_classification"


VECTORS = Head((), "vectors")
"""No output layer: the last hidden states are what the model gives."""


def attach(config: PreTrainedConfig, head: Head, pad_token_id: int = 0) -> bool:
    """Make a base model's config that of a model with this head; return whether it had it already.

    A classifier may have more labels than the data: it keeps them.

    Raises:
        TrainingError: its family has no class for that.

    """
    if head is VECTORS:
        config.gives_vectors = True
        config.architectures = [model_class(config).__name__]
        return False
    mapping = (
        MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING
        if head.scores_tokens
        else MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING
    )
    if type(config) not in mapping:
        raise TrainingError(
            "unsupported_architecture",
            f"{config.model_type} models cannot give scores: their family has no class for it.",
            hint="Choose another model, such as Llama, Qwen, Gemma 3, Mistral or GPT-2.",
        )
    has_head = _has_head(config, head)
    config.architectures = [mapping[type(config)].__name__]
    names = _saved_names(config) if has_head else head.names
    config.id2label = dict(enumerate(names))
    config.label2id = {name: number for number, name in enumerate(names)}
    if not head.scores_tokens:
        config.problem_type = head.problem_type
    if encoder_of(config) is None or config.pad_token_id is None:
        # The score is read at the last token that is not padding. Encoders count positions by it.
        config.get_text_config().pad_token_id = pad_token_id
    return has_head


def _has_head(config: PreTrainedConfig, head: Head) -> bool:
    """Whether a saved model ends in this head: the same numbers, or all of the labels."""
    names = _saved_names(config)
    is_same_kind = _saved_problem(config) == head.problem_type
    if not is_attached(config) or not is_same_kind or len(set(names)) < len(names):
        return False
    if head.problem_type == "regression":
        return names == head.names
    return set(head.names) <= set(names)


def _saved_names(config: PreTrainedConfig) -> tuple[str, ...]:
    return tuple(str(name) for _number, name in sorted((config.id2label or {}).items()))


def _saved_problem(config: PreTrainedConfig) -> str:
    """Return what a saved head is for; upstream decides it by the number of its scores."""
    if scores_tokens(config):
        return "token_classification"
    usual = "regression" if config.num_labels == 1 else "single_label_classification"
    return str(config.problem_type or usual)


KEPT, DRAWN = "kept from the base model", "new"


def describe(config: PreTrainedConfig, *, has_head: bool) -> str:
    """Return in words what a run's head is; empty if its model gives tokens."""
    if not is_attached(config):
        return ""
    return KEPT if has_head else DRAWN


def is_attached(config: PreTrainedConfig) -> bool:
    """Whether the config is that of a model that gives scores."""
    return any(name.endswith((_SUFFIX, _TOKEN_SUFFIX)) for name in config.architectures or ())


def gives_vectors(config: PreTrainedConfig) -> bool:
    """Whether the config is that of a model that gives vectors."""
    return bool(getattr(config, "gives_vectors", False))


def forget_vectors(config: PreTrainedConfig) -> None:
    """Make a model that gave vectors one like any other: to train it further, or to chat."""
    config.__dict__.pop("gives_vectors", None)


def build_options(config: PreTrainedConfig) -> dict[str, Any]:
    """Return the options with which upstream builds such a model.

    Vectors are read before the layer in which some encoders pool their states.
    """
    if not gives_vectors(config):
        return {}
    has_pooler = "add_pooling_layer" in inspect.signature(model_class(config).__init__).parameters
    return {"add_pooling_layer": False} if has_pooler else {}


def writes_text(config: PreTrainedConfig) -> bool:
    """Whether the config is that of a model that writes."""
    return not is_attached(config) and not gives_vectors(config)


def scores_tokens(config: PreTrainedConfig) -> bool:
    """Whether the config is that of a model that gives scores of each token."""
    return any(name.endswith(_TOKEN_SUFFIX) for name in config.architectures or ())


def encoder_of(config: PreTrainedConfig) -> encoders.Encoder | None:
    """Return the encoder that gives the scores; None for any other model."""
    return encoders.find({"model_type": config.model_type, "is_decoder": _is_decoder(config)})


def _is_decoder(config: PreTrainedConfig) -> bool:
    return bool(getattr(config, "is_decoder", False))


def is_encoder_decoder(config: PreTrainedConfig) -> bool:
    """Whether the config is that of a model of which one half reads a text and the other writes."""
    return bool(config.is_encoder_decoder) and not is_attached(config)


def reads_images(config: PreTrainedConfig) -> bool:
    """Whether the config is that of a model that reads images and text, and writes text."""
    return config.model_type in image_text.FAMILIES and writes_text(config)


def auto_class(config: PreTrainedConfig) -> Any:  # noqa: ANN401 -- upstream's classes share no type
    """Return upstream's class that loads and builds such a model."""
    if gives_vectors(config):
        return AutoModel
    if is_encoder_decoder(config):
        return AutoModelForSeq2SeqLM
    if reads_images(config):
        return AutoModelForImageTextToText
    if scores_tokens(config):
        return AutoModelForTokenClassification
    return AutoModelForSequenceClassification if is_attached(config) else AutoModelForCausalLM


def task_type(config: PreTrainedConfig) -> str:
    """Return peft's name of what such a model does. With scores, peft also trains the head."""
    if gives_vectors(config):
        return "FEATURE_EXTRACTION"
    if is_encoder_decoder(config):
        return "SEQ_2_SEQ_LM"
    if scores_tokens(config):
        return "TOKEN_CLS"
    return "SEQ_CLS" if is_attached(config) else "CAUSAL_LM"


def model_class(config: PreTrainedConfig) -> type[PreTrainedModel]:
    """Return the family's own class.

    Raises:
        TrainingError: the family has none.

    """
    mapping = MODEL_FOR_CAUSAL_LM_MAPPING
    if gives_vectors(config):
        mapping = MODEL_MAPPING
    elif scores_tokens(config):
        mapping = MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING
    elif is_attached(config):
        mapping = MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING
    elif is_encoder_decoder(config):
        mapping = MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING
    elif reads_images(config):
        mapping = MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
    try:
        family: type[PreTrainedModel] = mapping[type(config)]
    except KeyError as error:
        raise TrainingError(
            "unsupported_architecture",
            f"{config.model_type} models do not generate text, or not in a way that can be "
            "trained.",
            hint=CAUSAL_MODEL_HINT,
        ) from error
    return family


def output_layer(model: Any) -> nn.Module | None:  # noqa: ANN401 -- maybe with an adapter
    """Return the layer that gives tokens or scores."""
    base = model.get_base_model() if hasattr(model, "peft_config") else model
    if is_attached(base.config):
        layer: nn.Module = base.get_submodule(part_names(base.config)[-1])
        return layer
    output: nn.Module | None = base.get_output_embeddings()
    return output


def part_names(config: PreTrainedConfig) -> tuple[str, ...]:
    """Return the modules of a model that are its head, the output layer last; none for tokens."""
    if not is_attached(config):
        return ()
    encoder = encoder_of(config)
    if not scores_tokens(config):
        return ("score",) if encoder is None else encoder.head
    if encoder is not None:
        return encoder.token_head
    is_generic = issubclass(model_class(config), GenericForTokenClassification)
    return ("score",) if is_generic else ("classifier",)


def output_modules(model: Any) -> set[nn.Module]:  # noqa: ANN401 -- the same
    """Return the output layer and all others of a head, with the copies that an adapter trains."""
    base = model.get_base_model() if hasattr(model, "peft_config") else model
    layer, names = output_layer(model), part_names(base.config)
    heads = [base.get_submodule(name) for name in names] or [layer]
    return {module for head in heads if head is not None for module in head.modules()}


def is_part(name: str, config: PreTrainedConfig) -> bool:
    """Whether a weight belongs to the head of a model that gives scores."""
    return name.startswith(tuple(f"{part}." for part in part_names(config)))


def compute_in_float32(model: PreTrainedModel) -> None:
    """Keep the head's weights in float32, and compute it so even under autocast.

    In 16 bits, scores between 3 and 5 have about a hundred distinct values.
    """
    for name in part_names(model.config):
        layer = model.get_submodule(name)
        for weight in layer.parameters():
            weight.data = weight.data.float()
        kind = type(layer)
        layer.__class__ = type(f"Float32{kind.__name__}", (_Float32Forward, kind), {})


def initialise(model: PreTrainedModel, seed: int, *, has_head: bool = False) -> None:
    """Draw the weights of a new head, if there is one; they depend on the seed alone.

    What a base model has of the head, such as BERT's pooler, stays. Its output layer stays only if
    the base model has this head (`has_head`).
    """
    names = _new_weights(model, has_head=has_head)
    model.new_head = names
    generator = torch.Generator().manual_seed(seed)
    deviation = getattr(model.config.get_text_config(), "initializer_range", _STANDARD_DEVIATION)
    for name, weight in model.named_parameters():
        if name not in names or isinstance(weight.data, FakeTensor):
            continue
        # The weights of a norm scale by one.
        drawn = torch.full(weight.shape, float(weight.dim() == 1 and name.endswith("weight")))
        if weight.dim() > 1:
            drawn.normal_(0.0, deviation, generator=generator)
        weight.data = drawn.to(weight)


def new_modules(model: Any) -> set[nn.Module]:  # noqa: ANN401 -- maybe with an adapter
    """Return the modules of a head whose weights are drawn, with the copies an adapter trains."""
    base = model.get_base_model() if hasattr(model, "peft_config") else model
    names = part_names(base.config)
    drawn: frozenset[str] = getattr(base, "new_head", frozenset())
    new = [name for name in names if any(one.startswith(f"{name}.") for one in drawn)]
    return {module for name in new for module in base.get_submodule(name).modules()}


def note_missing(model: PreTrainedModel, missing: Collection[str]) -> None:
    """Remember which weights of the head the model's files lack."""
    model.missing_head = frozenset(name for name in missing if is_part(name, model.config))


def _new_weights(model: PreTrainedModel, *, has_head: bool) -> frozenset[str]:
    """Return the weights of a head that are drawn: the output layer's, and those not in files."""
    names = part_names(model.config)
    output = () if has_head else tuple(f"{name}." for name in names[-1:])
    own = {name for name, _weight in model.named_parameters() if name.startswith(output)}
    missing: frozenset[str] = getattr(model, "missing_head", frozenset())
    return frozenset(own) | missing


class _Float32Forward(nn.Module):
    """Computes a module in float32, whatever it reads."""

    def forward(self, states: Tensor, *others: object, **options: object) -> Tensor:
        with torch.autocast(states.device.type, enabled=False):
            scores: Tensor = super().forward(states.float(), *others, **options)
        return scores
