"""Encoders learn labels and numbers: each accepted family, from a model without a head."""

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from tokenizers import processors
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoModel,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedTokenizerBase,
)

from studio.protocols.events import Failed, Finished, Started
from studio.protocols.inference_service import GenerationRequest
from studio.protocols.run_dir import JobSpec
from studio.protocols.tasks import TaskDir
from studio.recipe.exports import ExportSpec
from studio.runner.execution import execute_export, execute_run
from studio.runner.inference.model_cache import ModelCache
from studio.runner.inference.reading import give_scores
from studio.runner.tasks.memory_dry_run import measure
from studio.runner.training_run import load_recipe
from studio.training.data.rows import read_rows, split_rows
from studio.training.stop_handler import StopHandler
from studio.weights.encoders import ENCODERS
from tests.training import tiny
from tests.training.checkpoints import resumed_runs
from tests.training.checkpoints.resumed_runs import SAVED, STEPS
from tests.training.runs import test_classification as labels
from tests.training.runs import test_regression as numbers
from tests.training.tiny import LORA, Changes

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::FutureWarning")]

SIZES: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "embedding_size": 32,
    "d_model": 32,
    "attention_window": 16,
    "global_attn_every_n_layers": 2,
    "true_hidden_size": 32,
    "intra_bottleneck_size": 32,
}
"""By the names that the families use; DistilBERT's are those of `attribute_map`."""
STEPS_TO_LEARN: Changes = labels.LEARNS | {"optimisation__max_steps": 80}
OTHER_RATES = {"albert": 0.001, "gte": 0.001}
"""Families that learn in twice as many steps at another learning rate."""


def make_tokenizer() -> PreTrainedTokenizerBase:
    """Return a tokenizer that opens and closes each text, as those of encoders do, and no chat."""
    made = tiny.tokenizer()
    made.chat_template = None
    opening, closing = ("<|im_start|>", 1), ("<|im_end|>", 2)
    made.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{opening[0]} $A {closing[0]}", special_tokens=[opening, closing]
    )
    return made


def write_encoder(folder: Path, family: str, **changes: object) -> Path:
    """Save a random encoder without a head."""
    kind = CONFIG_MAPPING[family]
    known = {*kind().to_dict(), *kind.attribute_map}
    sizes = {name: value for name, value in SIZES.items() if name in known}
    config = kind(**(sizes | changes))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        AutoModel.from_config(config).save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    return write_encoder(tmp_path / "bert", "bert")


def learns(family: str) -> Changes:
    if family not in OTHER_RATES:
        return STEPS_TO_LEARN
    rate = {"optimisation__learning_rate": OTHER_RATES[family]}
    return labels.LEARNS | rate | {"optimisation__max_steps": 160}


@pytest.mark.parametrize("family", sorted(ENCODERS))
def test_each_family_learns_labels(family: str, tmp_path: Path) -> None:
    run = labels.train(tmp_path / "run", write_encoder(tmp_path / "model", family), learns(family))

    assert isinstance(tiny.last_event(run), Finished), tiny.last_event(run)
    assert max(tiny.metric_values(run, "eval_macro_f1")) > 0.8


@pytest.mark.parametrize("family", sorted(ENCODERS))
def test_each_family_learns_with_an_adapter_in_bf16(family: str, tmp_path: Path) -> None:
    changes = learns(family) | LORA | {"precision": "bf16"}
    run = labels.train(tmp_path / "run", write_encoder(tmp_path / "model", family), changes)

    assert isinstance(tiny.last_event(run), Finished), tiny.last_event(run)
    losses = tiny.metric_values(run, "loss")
    assert losses[-1] < losses[0] - 0.1
    (started,) = tiny.events_of(run, Started)
    assert set(started.resolved["audit"]["kept_in_float32"]) >= set(ENCODERS[family].head)
    config = AutoConfig.from_pretrained(run.artifacts)
    base = AutoModelForSequenceClassification.from_pretrained(tmp_path / "model", config=config)
    loaded = PeftModel.from_pretrained(base, run.artifacts)
    names = {name for name, _module in loaded.named_modules()}
    for part in ENCODERS[family].head:
        assert f"base_model.model.{part}.modules_to_save.default" in names
        assert not any(f"{part}." in name and "lora" in name for name in names)


@pytest.mark.parametrize("changes", [{}, LORA | {"precision": "bf16"}], ids=["full", "lora"])
def test_resumed_run_equals_an_uninterrupted_one(
    changes: Changes, bert: Path, tmp_path: Path
) -> None:
    whole = labels.train(tmp_path / "whole", bert, STEPS | SAVED | changes)
    again = resumed_runs.interrupt_run(whole, 7, tmp_path / "again")

    assert execute_run(again.root, StopHandler()) == 0
    assert resumed_runs.curve(again) == resumed_runs.curve(whole)
    assert resumed_runs.bits(again) == resumed_runs.bits(whole)


@pytest.mark.parametrize("adapter", [{}, LORA], ids=["full", "lora"])
def test_model_loads_without_the_studio(adapter: Changes, bert: Path, tmp_path: Path) -> None:
    """The text alone is read, as plain transformers writes it."""
    run = labels.train(tmp_path / "run", bert, STEPS_TO_LEARN | adapter)
    config = AutoConfig.from_pretrained(run.artifacts)
    place = bert if adapter else run.artifacts
    loaded = AutoModelForSequenceClassification.from_pretrained(place, config=config)
    if adapter:
        loaded = PeftModel.from_pretrained(loaded, run.artifacts)
    reader = AutoTokenizer.from_pretrained(run.artifacts)
    recipe, right = load_recipe(run), 0
    spec = JobSpec.model_validate_json(run.job.read_text(encoding="utf-8"))
    _train, rows = split_rows(
        read_rows(spec.train), recipe.data.validation_share, recipe.optimisation.seed
    )
    for row in rows:
        with torch.no_grad():
            read = reader(row.messages[0]["content"], return_tensors="pt")
            logits = loaded.eval()(**read).logits
        right += config.id2label[int(logits.argmax())] == row.messages[1]["content"]

    assert right / len(rows) == pytest.approx(tiny.metric_values(run, "eval_accuracy")[-1])


@pytest.mark.parametrize(
    ("family", "length"), [("bert", 16), ("roberta", 16), ("deberta-v2", 16), ("modernbert", None)]
)
def test_texts_are_truncated_to_the_positions_of_the_model(
    family: str, length: int | None, tmp_path: Path
) -> None:
    rows = 16 + (family == "roberta")
    model = write_encoder(tmp_path / "model", family, max_position_embeddings=rows)
    texts = [labels.labelled(one, two) for one in range(6) for two in range(8)]
    for row in texts:
        row["messages"][0]["content"] *= 3
    run = labels.train(tmp_path / "run", model, {}, texts)

    assert isinstance(tiny.last_event(run), Finished), tiny.last_event(run)
    (started,) = tiny.events_of(run, Started)
    assert (started.resolved["longest_example"] == length) == (length is not None)
    assert started.resolved["truncated_rows"] == (len(texts) if length else 0)


def test_what_the_base_has_of_the_head_is_kept(bert: Path, tmp_path: Path) -> None:
    pooler = load_file(bert / "model.safetensors")["pooler.dense.weight"]
    model = labels.make_trainer(labels.write_run(tmp_path / "run", bert)).model

    assert torch.equal(model.bert.pooler.dense.weight, pooler)
    found = load_file(bert / "model.safetensors")
    bare = {name: weight for name, weight in found.items() if "pooler" not in name}
    save_file(bare, bert / "model.safetensors", metadata={"format": "pt"})
    drawn = [
        labels.make_trainer(
            labels.write_run(tmp_path / f"{number}", bert, {"optimisation__seed": seed})
        ).model.bert.pooler.dense.weight
        for number, seed in enumerate((1, 1, 2))
    ]
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def test_encoder_learns_numbers(bert: Path, tmp_path: Path) -> None:
    run = numbers.train(tmp_path / "run", bert, numbers.LEARNS)

    assert isinstance(tiny.last_event(run), Finished)
    assert max(tiny.metric_values(run, "eval_r2")) > 0.6


def test_dry_run_measures_an_encoder(bert: Path, tmp_path: Path) -> None:
    run = labels.write_run(tmp_path / "run", bert)
    folder = TaskDir(tmp_path / "task")
    folder.files.mkdir(parents=True)
    params = {"recipe": load_recipe(run).model_dump(mode="json"), "job": run.job.read_text()}
    found = measure(folder, params, lambda _phase, _share: None)

    assert found["at_peak"]["activations"] > 0


def test_merged_export_is_a_classifier(bert: Path, tmp_path: Path) -> None:
    run = labels.train(tmp_path / "run", bert, STEPS_TO_LEARN | LORA)
    folder = run.export(1)
    folder.root.mkdir(parents=True)
    spec = ExportSpec(run=run.root, kind="merged", dtype="float32")
    folder.job.write_text(spec.model_dump_json(), encoding="utf-8")

    assert execute_export(folder.root, StopHandler()) == 0
    loaded = AutoModelForSequenceClassification.from_pretrained(folder.files)
    assert loaded.config.id2label == dict(enumerate(labels.NAMES))
    card = (folder.files / "README.md").read_text(encoding="utf-8")
    assert 'inputs = tokenizer("A text", return_tensors="pt")' in card


def test_inference_service_gives_probabilities(bert: Path, tmp_path: Path) -> None:
    run = labels.train(tmp_path / "run", bert, STEPS_TO_LEARN | LORA)
    request = GenerationRequest(
        model=str(bert), adapter=str(run.artifacts), ids=[1, 20, 2], stops=[], gives_scores=True
    )
    with ModelCache().model_for(request) as (loaded, _tokenizer):
        scores = give_scores(request, loaded).scores

    assert sum(scores.values()) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("dtype", ["nf4", "int8"])
@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert"])
def test_head_of_a_quantised_base_is_not_quantised(family: str, dtype: str, tmp_path: Path) -> None:
    changes = LORA | {"precision": "bf16", "adapter__base_dtype": dtype}
    run = labels.train(tmp_path / "run", write_encoder(tmp_path / "model", family), changes)

    assert isinstance(tiny.last_event(run), Finished), tiny.last_event(run)


@pytest.mark.parametrize("kind", ["oft", "ia3"])
def test_other_adapters_leave_the_head_whole(kind: str, bert: Path, tmp_path: Path) -> None:
    run = labels.train(tmp_path / "run", bert, {"adapter__kind": kind})

    assert isinstance(tiny.last_event(run), Finished), tiny.last_event(run)
    saved = load_file(run.artifacts / "adapter_model.safetensors")
    assert any("bert.pooler.dense.weight" in name for name in saved)


def test_activation_checkpointing_is_refused_where_it_is_not_supported(tmp_path: Path) -> None:
    model = write_encoder(tmp_path / "model", "albert")
    run = labels.train(tmp_path / "run", model, {"optimisation__activation_checkpointing": True})
    failed = tiny.last_event(run)

    assert isinstance(failed, Failed)
    assert failed.message == "albert models do not support activation checkpointing."
