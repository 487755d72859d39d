"""The model card: what was trained, on what, how, and with what result."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from studio.events import Sampled
from studio.recipe.adapters import Lora
from studio.recipe.base import Recipe
from studio.recipe.yaml import dump

_CARD = """\
---
{front}---

# {name}

{base} fine-tuned with Mantissa Studio on the data set `{dataset}`: {trained}.

## Results

{results}

## Precision

{precision}

## Data

{data}

## Samples

{samples}

## Recipe

```yaml
{recipe}```

## Versions

{versions}
"""
_SHOWN = 4


def write(
    name: str,
    recipe: Recipe,
    resolved: Mapping[str, Any],
    metrics: Mapping[str, float],
    samples: Sequence[Sampled],
) -> str:
    """Write the card of a finished run. It names no folder of the machine it was trained on."""
    base = _public(recipe.base_model)
    return _CARD.format(
        front=yaml.safe_dump(_front(recipe), sort_keys=False),
        name=name,
        base=f"`{base}`",
        dataset=recipe.dataset,
        trained=f"{_trained(recipe)}, {resolved['trainable_parameters']:,} parameters",
        results=_table({key: f"{value:,.4g}" for key, value in metrics.items()}),
        precision=_table({key: resolved[key] for key in _PRECISION}),
        data=_table({key: f"{resolved[key]:,}" for key in _DATA}),
        samples="\n".join(_samples(samples)) or "None were written.",
        recipe=dump(recipe.model_copy(update={"base_model": base})),
        versions=_table(resolved["versions"]),
    )


def write_of_failure(name: str, step: int, message: str) -> str:
    """Write the card of weights that were kept from a run that failed."""
    return (
        f"# {name}: last good weights\n\n"
        f"This run failed at step {step}, so these weights are no result. {message}\n\n"
        "They are those of the last step that changed them before its numbers broke.\n"
    )


def _trained(recipe: Recipe) -> str:
    if not isinstance(recipe.adapter, Lora):
        return "every weight"
    row = recipe.adapter.quantised
    return f"a LoRA adapter beside the model in {row.title}" if row else "a LoRA adapter"


_PRECISION = ("weights", "compute", "gradients", "optimizer_states", "scaler", "device")
_DATA = ("train_rows", "validation_rows", "dropped_rows", "truncated_rows", "train_tokens")


def _front(recipe: Recipe) -> dict[str, Any]:
    lora = isinstance(recipe.adapter, Lora)
    front: dict[str, Any] = {
        "library_name": "peft" if lora else "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["mantissa-studio", "sft", "lora" if lora else "full-fine-tune", recipe.precision],
    }
    if _is_on_hub(recipe.base_model):
        front["base_model"] = recipe.base_model
    return front


def _is_on_hub(model: str) -> bool:
    return model.count("/") == 1 and not Path(model).is_absolute() and not model.startswith(".")


def _public(model: str) -> str:
    """Return a name that tells nothing of this machine's folders."""
    return model if _is_on_hub(model) else Path(model).name


def _table(rows: Mapping[str, object]) -> str:
    lines = [f"| {key.replace('_', ' ')} | {value} |" for key, value in rows.items()]
    return "\n".join(["| | |", "|---|---|", *lines])


def _samples(samples: Sequence[Sampled]) -> list[str]:
    before = {sample.position: sample.answer for sample in samples if sample.stage == "before"}
    after = [sample for sample in samples if sample.stage == "after"]
    return [
        f"**{_inline(sample.prompt)}**\n\n"
        f"* before: {_inline(before.get(sample.position, ''))}\n"
        f"* after: {_inline(sample.answer)}\n"
        f"* reference: {_inline(sample.reference)}\n"
        for sample in after[:_SHOWN]
    ]


def _inline(text: str) -> str:
    return " ".join(text.split()) or "(nothing)"
