"""Write model cards: what was trained, on what data, how, and with what result."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from studio.protocols.events import Sampled
from studio.recipe.adapters import Adapter, FullFineTune
from studio.recipe.base import Recipe
from studio.recipe.exports import ExportSpec
from studio.recipe.precision import PRECISIONS, QUANTISED
from studio.recipe.yaml import dump
from studio.training import load_examples

_RUN_TEMPLATE = """\
---
{front}---

# {name}

{base} {verb} with Mantissa Studio on the dataset `{dataset}`: {trained}.

## Results

{results}{cut}{load}

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
_MAX_SAMPLES = 4


def build_run_card(
    name: str,
    recipe: Recipe,
    resolved: Mapping[str, Any],
    metrics: Mapping[str, float],
    samples: Sequence[Sampled],
    cut: str = "",
) -> str:
    """Write the card of a finished run. It contains no local paths.

    `cut` says where the run was stopped by hand, if it was.
    """
    base = public_name(recipe.base_model)
    return _RUN_TEMPLATE.format(
        front=yaml.safe_dump(_front_matter(recipe), sort_keys=False),
        name=name,
        base=f"`{base}`",
        verb=recipe.card_verb + _taught_by(recipe),
        dataset=recipe.dataset,
        trained=f"{_describe_trained(recipe)}, {resolved['trainable_parameters']:,} parameters",
        results=_markdown_table({key: f"{value:,.4g}" for key, value in metrics.items()}),
        cut=f"\n\n{cut}" if cut else "",
        load=_describe_changed_base(recipe, base),
        precision=_markdown_table({key: resolved[key] for key in _PRECISION_ROWS}),
        data=_markdown_table({key: f"{resolved[key]:,}" for key in _DATA_ROWS}),
        samples="\n".join(_sample_lines(samples)) or "None were generated.",
        recipe=dump(recipe.with_model_names(public_name)),
        versions=_markdown_table(resolved["versions"]),
    )


def _taught_by(recipe: Recipe) -> str:
    return f" from `{public_name(recipe.teacher.name)}`" if recipe.teacher else ""


def _describe_changed_base(recipe: Recipe, base: str) -> str:
    """Return how to load an adapter whose base model has to be changed first, if it has."""
    changes = _base_changes(recipe)
    if not isinstance(recipe.adapter, Adapter) or not changes:
        return ""
    return (
        f"\n\n## How to load it\n\nThe adapter was trained on its base model with {changes}, and "
        f"is wrong on any other:\n\n```python\n{_load_example(recipe, 'adapter', base)}```"
    )


def _base_changes(recipe: Recipe) -> str:
    """Return what the run changed of its base model, in words; empty if nothing."""
    options, changes = recipe.model, []
    if options.rope_type != "none":
        kind, factor = options.rope_type, options.rope_factor
        changes.append(f"positions stretched {factor:g} times ({kind})")
    if options.new_tokens:
        changes.append(f"rows for {len(options.new_token_texts)} new tokens")
    return " and ".join(changes)


def build_failure_card(name: str, step: int, message: str) -> str:
    """Write the card for the weights kept from a failed run."""
    return (
        f"# {name}: last good weights\n\n"
        f"This run failed at step {step}, so these weights are not a result. {message}\n\n"
        "They are from the last update before its loss or gradients became NaN or infinite.\n"
    )


def _describe_trained(recipe: Recipe) -> str:
    if not isinstance(recipe.adapter, Adapter):
        return _trained_part(recipe.adapter)
    quantised, variant = recipe.adapter.quantised, recipe.adapter.lora_variant
    adapter = _name_adapter(recipe.adapter)
    if variant is not None and variant.name != "plain":
        adapter = f"{adapter} ({variant.title})"
    return f"{adapter} trained on the model in {quantised.title}" if quantised else adapter


def _name_adapter(adapter: Adapter) -> str:
    return f"{'a' if adapter.title.startswith('L') else 'an'} {adapter.title}"


_EVERYTHING = "every weight"


def _trained_part(adapter: FullFineTune) -> str:
    """Return which weights of the model itself were trained."""
    if adapter.trained.is_everything:
        return _EVERYTHING
    count, extra = adapter.trained_layers, adapter.also_trained.replace("_and_", " and ")
    layers = f"the last {count} layers" if count != 1 else "the last layer"
    extras = "" if extra == "none" else f"the {extra}"
    return " and ".join(part for part in (layers if count else "", extras) if part)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportFindings:
    """What an export found out, besides its measurements."""

    licence: str = ""
    """What the base model's card names; "" if it names none."""
    sample: Mapping[str, str] = field(default_factory=dict)
    """A `prompt`, and its answers `before` and `after`; empty if there are none."""
    notes: Sequence[str] = ()
    """Sentences of the format's own checks."""
    has_chat_template: bool = True
    """Without one, the model reads a text as its tokenizer writes it."""


def build_export_card(
    name: str,
    recipe: Recipe,
    base: str,
    spec: ExportSpec,
    metrics: Mapping[str, float],
    findings: ExportFindings,
) -> str:
    """Write the card of an exported model: its format, and what the conversion changed."""
    what = "adapter" if spec.kind == "adapter" else "model"
    is_gguf, dtype = spec.kind == "gguf", spec.number_format.title or spec.dtype
    library = "gguf" if is_gguf else _library(recipe, is_adapter=spec.kind == "adapter")
    front: dict[str, Any] = {
        "library_name": library,
        "pipeline_tag": _PIPELINES[_kind(recipe)],
        "tags": ["mantissa-studio", recipe.method, *recipe.card_tags, spec.kind, spec.dtype],
    }
    if is_on_hub(base):
        front["base_model"] = base
    return _EXPORT_TEMPLATE.format(
        front=yaml.safe_dump(front, sort_keys=False),
        name=name,
        base=f"`{base}`",
        verb=recipe.card_verb + _taught_by(recipe),
        dataset=recipe.dataset,
        what=_describe_export(recipe, spec),
        dtype=dtype,
        measured=_markdown_table(
            {key: _format_metric(key, value) for key, value in metrics.items()}
        ),
        computed=_GGUF_NOTE if is_gguf else _MEASURED_NOTES[recipe.outputs][what].format(dtype),
        notes="".join(f"\n\n{note}" for note in findings.notes),
        sample=_compare_answers(findings.sample),
        licence=f"The card of the base model names its licence: {findings.licence}."
        if findings.licence
        else "The base model names no licence. Ask who published it before you pass this on.",
        load=_GGUF_LOADING.format(dtype)
        if is_gguf
        else "```python\n"
        + _load_example(recipe, what, base, has_chat_template=findings.has_chat_template)
        + "```",
    )


def _compare_answers(sample: Mapping[str, str]) -> str:
    if not sample:
        return ""
    return (
        f"\n\n## One answer\n\n**{_inline(sample['prompt'])}**\n\n"
        f"* before: {_inline(sample['before'])}\n* after: {_inline(sample['after'])}"
    )


def _load_example(recipe: Recipe, what: str, base: str, *, has_chat_template: bool = True) -> str:
    """Return Python that loads an adapter or a model."""
    options, arguments = recipe.model, _load_arguments(recipe)
    is_head = recipe.outputs in _HEADS
    return load_examples.LOAD_EXAMPLES[_kind(recipe)][what].format(
        base=base if is_on_hub(base) else f"path/to/{base}",
        read=_read_example(recipe, has_chat_template=has_chat_template),
        config="" if is_head or options.rope_type == "none" else _LOAD_CONFIG,
        auto="" if is_head or options.rope_type == "none" else "AutoConfig, ",
        rows=_ADD_ROWS if options.new_tokens else "",
        imports=arguments["imports"],
        how=("" if is_head or options.rope_type == "none" else ", config=config")
        + arguments["how"],
    )


_HEADS = frozenset({"score", "label", "number", "steps", "vector", "relevance"})
"""Outputs of models whose config is loaded from the adapter's folder anyway."""
_LOAD_CONFIG = """\
config = AutoConfig.from_pretrained("path/to/this/folder")
"""
_ADD_ROWS = """\
if len(tokenizer) > base.get_input_embeddings().num_embeddings:
    base.resize_token_embeddings(len(tokenizer))
"""


def _read_example(recipe: Recipe, *, has_chat_template: bool) -> str:
    example = load_examples.READ.get(recipe.outputs, "")
    return (
        example
        if has_chat_template
        else example.replace(load_examples.READ_CHAT, load_examples.READ_TEXT)
    )


_EXPORT_TEMPLATE = """\
---
{front}---

# {name}, {dtype}

{base} {verb} with Mantissa Studio on the dataset `{dataset}`: {what}, in {dtype}.

## Effect of the conversion to {dtype}

{measured}

Counted over every weight, compared with the trained weights. A relative change is
|after - before| / |before|; a weight that became zero has changed by 1, and one that became
infinite only counts as overflowed.

{computed}{notes}{sample}

## Licence

{licence}

## How to load it

{load}
"""
_GGUF_NOTE = """\
Perplexity is over the trained tokens of the run's validation rows: before, with the weights as
trained, computed in float32; after, as Transformers reads the file back, computed in float32."""
_GGUF_LOADING = """\
With llama.cpp, which reads the tokenizer and the chat template from the file:

```sh
llama-server --model model-{}.gguf
```

With Ollama, if there is a `Modelfile` in this folder:

```sh
ollama create my-model --file Modelfile
ollama run my-model
```"""


def _describe_export(recipe: Recipe, spec: ExportSpec) -> str:
    if not isinstance(recipe.adapter, Adapter):
        part = _trained_part(recipe.adapter)
        return f"{part} was trained" if part == _EVERYTHING else f"trained were only {part}"
    row, dtype = recipe.adapter.quantised, recipe.adapter.base_dtype
    origin = "" if dtype == "native" else f" trained on its base in {row.title if row else dtype}"
    adapter = _name_adapter(recipe.adapter)
    if spec.kind == "adapter":
        return f"{adapter}{origin}, without that base"
    if spec.kind == "merged_original":
        return (
            f"{adapter}{origin}, merged into the base as it was saved; this is not the model "
            "that was trained, and the figures below show how much it differs"
        )
    return f"{adapter}{origin}, merged into that base" + (" after dequantising it" if row else "")


def _load_arguments(recipe: Recipe) -> dict[str, str]:
    """Return how to load an adapter's base in the format it was trained with."""
    quantised, compute = recipe.adapter.quantised, PRECISIONS[recipe.precision].compute
    if quantised is None:
        base_dtype = recipe.adapter.base_dtype if isinstance(recipe.adapter, Adapter) else "native"
        dtype = "float32" if base_dtype == "native" else base_dtype
        return {"imports": "", "how": f', dtype="{dtype}"'}
    if quantised is QUANTISED["int8"]:
        config = "BitsAndBytesConfig(load_in_8bit=True)"
    else:
        config = (
            f'BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="{quantised.name}", '
            f'bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype="{compute}")'
        )
    return {
        "imports": ", BitsAndBytesConfig",
        "how": f', dtype="{compute}", quantization_config={config}',
    }


_PERPLEXITY_NOTES = {
    "model": "Perplexity is over the trained tokens of the run's validation rows: before, with\n"
    "the weights as trained, computed in float32; after, as loaded from this folder, computed\n"
    "in {}.",
    "adapter": "Perplexity is over the trained tokens of the run's validation rows, both times\n"
    "on the base it was trained on, computed in float32.",
}
_SCORE_NOTES = {
    "model": "Training computes the scores in float32 whatever the format of the other weights. "
    "Loaded in\n16 bits, close scores become equal.",
    "adapter": "The adapter holds the layer that gives the scores; keep it in float32.",
}
_VECTOR_NOTES = {
    "model": "Training computes the vectors in float32 from the last states of the model, whatever "
    "the\nformat of its weights.",
    "adapter": "The adapter fits only the base model that it was trained on.",
}
_MEASURED_NOTES = {
    "text": _PERPLEXITY_NOTES,
    "rewrite": _PERPLEXITY_NOTES,
    "score": _SCORE_NOTES,
    "label": _SCORE_NOTES,
    "number": _SCORE_NOTES,
    "steps": _SCORE_NOTES,
    "entities": _SCORE_NOTES,
    "vector": _VECTOR_NOTES,
    "relevance": _SCORE_NOTES,
}
_PIPELINES = {
    "text": "text-generation",
    "images": "image-text-to-text",
    "rewrite": "text2text-generation",
    "score": "text-classification",
    "label": "text-classification",
    "number": "text-classification",
    "steps": "token-classification",
    "entities": "token-classification",
    "vector": "sentence-similarity",
    "relevance": "text-ranking",
}


def _format_metric(key: str, value: float) -> str:
    if key.startswith(("loss", "perplexity", "max", "mean")):
        return f"{value:,.6g}"
    return f"{value:,.0f}"


_PRECISION_ROWS = ("weights", "compute", "gradients", "optimizer_states", "scaler", "device")
_DATA_ROWS = (
    *("train_rows", "train_examples", "validation_rows"),
    *("dropped_rows", "truncated_rows", "train_tokens"),
)


def _front_matter(recipe: Recipe) -> dict[str, Any]:
    is_full = recipe.adapter.kind == "full"
    kind = "full-fine-tune" if is_full else recipe.adapter.kind
    front: dict[str, Any] = {
        "library_name": _library(recipe, is_adapter=not is_full),
        "pipeline_tag": _PIPELINES[_kind(recipe)],
        "tags": ["mantissa-studio", recipe.method, *recipe.card_tags, kind, recipe.precision],
    }
    if is_on_hub(recipe.base_model):
        front["base_model"] = recipe.base_model
    return front


def _kind(recipe: Recipe) -> str:
    """Return what a model gives, or that it reads images."""
    return "images" if recipe.images else recipe.outputs


def _library(recipe: Recipe, *, is_adapter: bool) -> str:
    if recipe.vectors:
        return "sentence-transformers"
    return "peft" if is_adapter else "transformers"


def is_on_hub(model: str) -> bool:
    return model.count("/") == 1 and not Path(model).is_absolute() and not model.startswith(".")


def public_name(model: str) -> str:
    """Return a model's name without local folders."""
    return model if is_on_hub(model) else Path(model).name


def base_name(name: str, location: str) -> str:
    """Return a base model's public name: its name on the hub, else its name in the studio."""
    return location if is_on_hub(location) else public_name(name)


def _markdown_table(rows: Mapping[str, object]) -> str:
    lines = [f"| {key.replace('_', ' ')} | {value} |" for key, value in rows.items()]
    return "\n".join(["| | |", "|---|---|", *lines])


def _sample_lines(samples: Sequence[Sampled]) -> list[str]:
    before = {sample.position: sample.answer for sample in samples if sample.stage == "before"}
    after = [sample for sample in samples if sample.stage == "after"]
    return [
        f"**{_inline(sample.prompt)}**\n\n"
        f"* before: {_inline(before.get(sample.position, ''))}\n"
        f"* after: {_inline(sample.answer)}\n"
        f"* reference: {_inline(sample.reference)}\n"
        for sample in after[:_MAX_SAMPLES]
    ]


def _inline(text: str) -> str:
    return " ".join(text.split()) or "(nothing)"
