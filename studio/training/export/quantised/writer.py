"""Write a folder that Transformers loads with quantised layers, and read it back."""

import gc
import logging
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from studio.errors import InvalidError
from studio.recipe.exports import EXPORT_FORMATS, explain_missing
from studio.training.evaluation.perplexity import Perplexity
from studio.training.export.exporter import Exporter
from studio.training.export.quantised import checks, layers
from studio.training.models import loader, quantised_weights
from studio.weights import safetensors_headers

_NAMED_LAYERS = 3
"""How many layers a note names that are not quantised."""


class QuantisedWriter:
    """Writes a whole model with linear layers in 8 or 4 bits."""

    def __init__(self, exporter: Exporter) -> None:
        self._exporter = exporter
        self._spec, self._source = exporter.spec, exporter.source
        self._found: dict[str, Any] = {}
        self._model: PreTrainedModel | None = None

    def refuse(self) -> None:
        """Raise an InvalidError if the package that quantises is not installed."""
        missing, hint = explain_missing(self._spec.kind, self._spec.number_format, "", None)
        if missing:
            raise InvalidError(missing, hint=hint)

    def write(self, partial: Path, done: Callable[[float], None]) -> dict[str, float]:
        """Write the quantised model, and read it back. Return how much its weights changed."""
        spec, folder = self._spec, self._exporter.model_folder
        plain = layers.empty_model(self._exporter.load_config(folder))
        unfit = layers.choose(plain, spec.kind, spec.dtype)
        config = layers.quantisation_config(plain, spec.kind, spec.dtype, unfit)
        self._source.tokenizer.save_pretrained(partial)
        model = self._load(folder, config)
        done(0.4)
        model.save_pretrained(partial, max_shard_size="2GB")
        del model
        gc.collect()
        done(0.6)
        self._model = self._load(partial)
        self._describe(partial, self._model, plain.num_parameters(), unfit)
        done(0.8)
        return checks.compare_weights(self._model, plain, folder, spec.dtype).metrics()

    def load(self, partial: Path) -> PreTrainedModel:
        """Return the model that was read back."""
        del partial
        assert self._model is not None  # noqa: S101 -- written before
        return self._model

    def verify(
        self, partial: Path, before: Perplexity | None, after: Perplexity | None
    ) -> dict[str, Any]:
        """Compare the loss, and return what the report says of the layers."""
        del partial
        checks.compare_loss(self._spec.dtype, before, after)
        return self._found

    def _load(self, folder: Path, quantisation: Any = None) -> PreTrainedModel:  # noqa: ANN401 -- upstream's configs share no type
        """Load a model, quantised as given, or as its own config says."""
        gc.collect()  # free the previous model
        # It warns about every product of 8 bits.
        logging.getLogger("bitsandbytes.autograd._functions").setLevel(logging.ERROR)
        config = self._exporter.load_config(folder)
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            str(folder),
            config=config,
            quantization_config=quantisation,
            dtype=torch.bfloat16,
            device_map={"": "cuda" if torch.cuda.is_available() else "cpu"},
            attn_implementation=loader.attention_implementation(config),
            use_safetensors=True,
            trust_remote_code=False,
        )
        return model.eval()

    def _describe(
        self, partial: Path, model: PreTrainedModel, total: int, unfit: Sequence[str]
    ) -> None:
        """Note how many weights are quantised, and in how many bits with their scales."""
        weights = {
            name: quantised_weights.count_parameters(weight)
            for name, weight in model.named_parameters()
            if layers.is_quantised(weight)
        }
        count = sum(weights.values())
        paths = {name.rpartition(".")[0] for name in weights}
        stored = sum(
            tensor.size * getattr(torch, tensor.dtype).itemsize
            for file in safetensors_headers.weight_files(partial)
            for tensor in safetensors_headers.read_tensors(file)
            if not tensor.name.endswith(".bias") and paths.intersection(_parents(tensor.name))
        )
        notes = [self._loading_note, f"{count:,} of {total:,} weights are quantised."]
        if unfit:
            named = ", ".join(unfit[:_NAMED_LAYERS]) + (" …" if len(unfit) > _NAMED_LAYERS else "")
            notes.append(
                f"{len(unfit):,} layers stay in bfloat16, because their sizes are no multiples of "
                f"the blocks in which weights are quantised: {named}."
            )
        self._found |= {
            "quantised_weights": count,
            "bits_per_quantised_weight": 8 * stored / max(count, 1),
            "layers_not_quantised": list(unfit),
            "notes": notes,
        }

    @property
    def _loading_note(self) -> str:
        package = EXPORT_FORMATS[self._spec.kind].packages[0]
        return f"To load this model, you need the package {package}: `pip install {package}`."


def _parents(name: str) -> Iterator[str]:
    """Yield the paths of the modules that a tensor may belong to."""
    return accumulate(name.split("."), lambda path, part: f"{path}.{part}")
