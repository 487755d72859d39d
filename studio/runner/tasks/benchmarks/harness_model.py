"""Lay out a model for lm-eval, so that it loads what the studio loads.

lm-eval loads a base model and puts an adapter on it, but knows nothing of what a run changed of the
base besides: its number format, its positions, its tokens. And it cuts the tables of a base that
have more rows than the tokenizer has tokens. Such models are merged and written first.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from peft import PeftModel
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from studio.errors import InvalidError
from studio.protocols.benchmarks import BenchmarkJob
from studio.protocols.inference_service import GenerationRequest
from studio.recipe.model_options import ModelOptions
from studio.training import served_models
from studio.training.data import chat_templates
from studio.training.data.chat_templates import ChatTemplate
from studio.training.models import (
    adapter_base,
    loader,
    quantised_weights,
    tokenizers,
    weight_formats,
)
from studio.weights.architectures import WRITING_KINDS


@dataclass(frozen=True, slots=True, kw_only=True)
class HarnessModel:
    """A model in files that lm-eval loads."""

    arguments: Mapping[str, str]
    """lm-eval's `model_args`."""
    template: ChatTemplate | None
    """None if the model has none, and the run has chosen none."""
    computed_in: str
    """The number format of its weights."""


def lay_out(job: BenchmarkJob, work: Path) -> HarnessModel:
    """Write the tokenizer with its template and, where lm-eval needs it, the merged model.

    Raises:
        InvalidError: the model runs code of its own.

    """
    request = job.model
    if request.code:
        raise InvalidError(
            "This model runs code of its own, and lm-eval is not allowed to run it.",
            hint="Evaluate it on a dataset instead.",
        )
    tokenizer = tokenizers.load(request.tokenizer or request.adapter or request.model, offline=True)
    template = None
    if tokenizer.chat_template or job.chat_template != "model":
        chat_templates.set_chat_template(tokenizer, job.chat_template)
        template = chat_templates.load(tokenizer)
    tokenizer.save_pretrained(work / "tokenizer")
    arguments = {"tokenizer": str(work / "tokenizer")}
    if _is_loaded_alike(request, tokenizer):
        dtype = _main_format(request)
        arguments |= {"pretrained": request.model, "dtype": dtype}
        arguments |= {"peft": request.adapter} if request.adapter else {}
        return HarnessModel(arguments=arguments, template=template, computed_in=dtype)
    _write_merged(request, work / "model")
    arguments |= {"pretrained": str(work / "model"), "dtype": "float32"}
    return HarnessModel(arguments=arguments, template=template, computed_in="float32")


def _is_loaded_alike(request: GenerationRequest, tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether lm-eval loads a model as the studio does."""
    if served_models.changed_options(request) != ModelOptions() or any(
        served_models.base_formats(request)
    ):
        return False
    config = loader.load_config(request.model, kinds=WRITING_KINDS).get_text_config()
    return not request.adapter or config.vocab_size == len(tokenizer)


def _main_format(request: GenerationRequest) -> str:
    """Return the format that the studio computes in: on a CPU float32, the fastest there."""
    if not torch.cuda.is_available():
        return "float32"
    config = loader.load_config(request.model, kinds=WRITING_KINDS)
    return weight_formats.main_format(request.model, config)


def _write_merged(request: GenerationRequest, folder: Path) -> None:
    """Write the model in float32, with its adapter merged into the base as the run loaded it."""
    model = _widen(served_models.load_base_model(request), request)
    if request.adapter:
        model = PeftModel.from_pretrained(model, request.adapter).merge_and_unload()
    model.save_pretrained(folder, max_shard_size="2GB")


def _widen(base: PreTrainedModel, request: GenerationRequest) -> PreTrainedModel:
    """Return a base in float32; a quantised one with the weights that it computes with."""
    if any(map(quantised_weights.is_quantised, base.parameters())):
        plain = adapter_base.load_original(served_models.base_source(request))
        return adapter_base.dequantise(base, plain)
    return base.cpu().float()
