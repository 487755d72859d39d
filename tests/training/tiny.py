"""Models, rows and runs small enough to train in a second, made without a network."""

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from studio.methods import RECIPE_ADAPTER, AnyRecipe
from studio.protocols.events import Event, MetricsLogged
from studio.protocols.run_dir import JobSpec, RunDir
from studio.recipe import yaml
from studio.recipe.dotted_keys import merge, nest
from studio.runner.execution import execute_run
from studio.training.data.tokenisation import Collator, Examples, row_tensors
from studio.training.stop_handler import StopHandler

EventType = TypeVar("EventType", bound=Event)
Row = dict[str, Any]
Changes = dict[str, Any]
"""Settings, with `__` for the dot."""

LORA: Changes = {"adapter__kind": "lora", "adapter__r": 4}

WITH_MARKS = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' }}"
    "{% if message.role == 'assistant' %}{% generation %}{{ message.content + '<|im_end|>' }}"
    "{% endgeneration %}{% else %}{{ message.content + '<|im_end|>' }}{% endif %}{{ '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
WITHOUT_MARKS = WITH_MARKS.replace("{% generation %}", "").replace("{% endgeneration %}", "")

RECIPE: dict[str, Any] = {
    "method": "sft",
    "base_model": "tiny",
    "dataset": "sums",
    "precision": "fp32",
    "optimisation": {
        "learning_rate": 0.01,
        "max_steps": 3,
        "per_device_train_batch_size": 4,
        "warmup_steps": 0.0,
    },
    "adapter": {"kind": "full"},
    "data": {"validation_share": 0.2},
    "samples": {"prompts": 0, "max_new_tokens": 4},
}


def rows() -> list[Row]:
    return [
        {
            "messages": [
                {"role": "user", "content": f"What is {one} plus {two}?"},
                {"role": "assistant", "content": f"{one} plus {two} is {one + two}."},
            ]
        }
        for one, two in product(range(6), repeat=2)
    ]


def write_rows(path: Path, those: Iterable[Mapping[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in those), encoding="utf-8")
    return path


def tokenizer(template: str = WITHOUT_MARKS) -> PreTrainedTokenizerBase:
    """Make a byte-level tokenizer that has read the rows."""
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    learner = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<|pad|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    texts = (turn["content"] for row in rows() for turn in row["messages"])
    inner.train_from_iterator(texts, learner)
    made = PreTrainedTokenizerFast(tokenizer_object=inner)
    made.add_special_tokens({"eos_token": "<|im_end|>", "pad_token": "<|pad|>"})
    made.chat_template = template
    return made


def llama() -> LlamaConfig:
    return LlamaConfig(
        vocab_size=320,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=128,
    )


def write_model(folder: Path, config: PreTrainedConfig) -> Path:
    """Save a random model, the same for the same kind, and its tokenizer."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def recipe(**changes: object) -> AnyRecipe:
    """Return the recipe with some changes: knobs, `__` for the dot."""
    turned = nest((name.replace("__", "."), value) for name, value in changes.items())
    return RECIPE_ADAPTER.validate_python(merge(RECIPE, turned), strict=False)


def write_run(
    root: Path,
    model: str | Path,
    those: Iterable[Row] | None = None,
    /,
    **changes: object,
) -> RunDir:
    """Lay out a run on rows, else on the sums; `changes` are knobs, `__` for the dot."""
    root.mkdir(parents=True)
    run = RunDir(root)
    run.recipe.write_text(yaml.dump(recipe(**changes)), encoding="utf-8")
    train = write_rows(root / "train.jsonl", rows() if those is None else those)
    spec = JobSpec(run_id=1, name="Sums", model=str(model), train=train, validation=None)
    run.job.write_text(spec.model_dump_json(), encoding="utf-8")
    return run


def train(
    root: Path, model: str | Path, those: Iterable[Row] | None = None, /, **changes: object
) -> RunDir:
    """Train a run in this process to its end."""
    run = write_run(root, model, those, **changes)
    execute_run(run.root, StopHandler())
    return run


class Runs:
    """Runs of one method on rows of its kind."""

    def __init__(self, rows: Sequence[Row], **settings: object) -> None:
        """Remember the rows and settings that a test does not give."""
        self.rows, self.settings = rows, settings

    def write(
        self,
        root: Path,
        model: Path,
        changes: Changes | None = None,
        rows: Sequence[Row] | None = None,
    ) -> RunDir:
        """Lay out a run."""
        given = self.rows if rows is None else rows
        return write_run(root, model, given, **{**self.settings, **(changes or {})})

    def train(
        self,
        root: Path,
        model: Path,
        changes: Changes | None = None,
        rows: Sequence[Row] | None = None,
    ) -> RunDir:
        """Train a run in this process to its end."""
        run = self.write(root, model, changes, rows)
        execute_run(run.root, StopHandler())
        return run


def events_of(run: RunDir, kind: type[EventType]) -> list[EventType]:
    return [event for event in run.events.read()[0] if isinstance(event, kind)]


def last_event(run: RunDir) -> Event:
    return run.events.read()[0][-1]


def metric_values(run: RunDir, metric: str) -> list[float]:
    points = [event.metrics for event in events_of(run, MetricsLogged)]
    return [metrics[metric] for metrics in points if metric in metrics]


def loss_of(model: PreTrainedModel, examples: Examples, pad_token_id: int) -> float:
    """Return the mean loss over all answers, by upstream's plainest way."""
    batch = Collator(pad_token_id)(row_tensors(examples.data))
    with torch.no_grad():
        logits = model.eval()(
            input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]
        ).logits
    return torch.nn.functional.cross_entropy(
        logits[:, :-1].flatten(0, 1).float(), batch["labels"][:, 1:].flatten()
    ).item()


def trained_texts(examples: Examples, reader: PreTrainedTokenizerBase) -> list[list[str]]:
    """Return the stretches of text, row by row, that labels stand on."""
    return [_stretches(row["labels"].tolist(), reader) for row in row_tensors(examples.data)]


def _stretches(labels: Sequence[int], reader: PreTrainedTokenizerBase) -> list[str]:
    stretches: list[list[int]] = [[]]
    for label in labels:
        if label >= 0:
            stretches[-1].append(label)
        elif stretches[-1]:
            stretches.append([])
    return [reader.decode(stretch) for stretch in stretches if stretch]
