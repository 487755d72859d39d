"""Rows that share an example teach what they teach alone."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    LlamaConfig,
    MambaConfig,
    MistralConfig,
    OPTConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

from studio.methods.sft import SFTRecipe
from studio.methods.sft.trainer import build
from studio.protocols.events import Failed, Finished, Started
from studio.protocols.tokenizer_service import PackingWindow, TokenizerRequest
from studio.runner.training_run import load_recipe
from studio.services.estimates import run_duration
from studio.training.data import packed_dataset, packing, tokenisation
from studio.training.data.labels import IGNORE_INDEX
from studio.training.data.rows import TrainingRow
from studio.training.job import TrainingJob
from tests.training import tiny
from tests.training.checkpoints.resumed_runs import LORA
from tests.training.checkpoints.test_resume import assert_equal_after
from tests.training.models.test_families import SIZE

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

APART: Mapping[str, PreTrainedConfig] = {
    "llama": LlamaConfig(**SIZE),
    "mistral": MistralConfig(**SIZE, sliding_window=20),
    "qwen2": Qwen2Config(**SIZE),
    "qwen3": Qwen3Config(**SIZE),
    "gpt2": GPT2Config(vocab_size=320, n_embd=32, n_layer=2, n_head=2, n_positions=128),
}
MIXING: Mapping[str, PreTrainedConfig] = {
    "mamba": MambaConfig(vocab_size=320, hidden_size=32, num_hidden_layers=2, state_size=8),
    # It takes positions, and hides nothing by them.
    "opt": OPTConfig(
        vocab_size=320,
        hidden_size=32,
        ffn_dim=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        word_embed_proj_dim=32,
        max_position_embeddings=128,
    ),
}
PACKED = {"data__packing": True, "data__max_length": 100}


def taught(folder: Path, config: PreTrainedConfig, attention: str, size: int) -> Iterator[Tensor]:
    """Yield the loss of all examples in batches of a size, and what it moves each weight by.

    Each counts by its tokens among all, as when gradients are added up.
    """
    model = tiny.write_model(folder / "model", config)
    run = tiny.write_run(folder / "run", model, **(PACKED if size > 1 else {}))
    job = TrainingJob.prepare(load_recipe(run), run, lambda _phase: None)
    job.model.set_attn_implementation(attention)
    recipe = load_recipe(run)
    assert isinstance(recipe, SFTRecipe)
    trainer = build(recipe, job)
    examples = list(trainer.train_dataset)
    batches = [
        trainer.data_collator(examples[at : at + size]) for at in range(0, len(examples), size)
    ]
    learnt = sum((batch["labels"][:, 1:] != IGNORE_INDEX).sum() for batch in batches)
    trainer.model.eval()
    losses = [
        trainer.compute_loss(trainer.model, batch, num_items_in_batch=learnt) for batch in batches
    ]
    loss = torch.stack(losses).sum()
    loss.backward()  # type: ignore[no-untyped-call] # upstream is untyped
    yield loss.detach()
    yield from (weight.grad for weight in trainer.model.parameters() if weight.grad is not None)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", APART)
def test_packed_rows_give_same_training_as_single_rows(
    family: str, attention: str, tmp_path: Path
) -> None:
    together = taught(tmp_path / "packed", APART[family], attention, 2)
    alone = taught(tmp_path / "alone", APART[family], attention, 1)

    for one, other in zip(together, alone, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("family", APART)
def test_model_that_isolates_rows_passes_contamination_check(family: str) -> None:
    model = AutoModelForCausalLM.from_config(APART[family]).train()

    packed_dataset.refuse_cross_contamination(model)

    assert model.training
    assert all(weight.grad is None for weight in model.parameters())


@pytest.mark.parametrize("family", MIXING)
def test_packing_is_rejected_for_model_that_mixes_rows(family: str, tmp_path: Path) -> None:
    model = tiny.write_model(tmp_path / "model", MIXING[family])

    ended = tiny.last_event(tiny.train(tmp_path / "run", model, **PACKED))

    assert isinstance(ended, Failed)
    assert ended.message == (
        f"A {family} model does not keep packed rows apart: each row would be read as a "
        "continuation of the one before."
    )
    assert ended.hint == 'Turn off "Sequence packing".'


@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16_pure", "fp16", "fp8"])
def test_packed_run_finishes_in_every_precision(precision: str, tmp_path: Path) -> None:
    model = tiny.write_model(tmp_path / "model", tiny.llama())

    run = tiny.train(tmp_path / "run", model, precision=precision, **PACKED)

    assert isinstance(tiny.last_event(run), Finished), tiny.last_event(run)


def test_packed_run_reports_row_and_example_counts(tmp_path: Path) -> None:
    model = tiny.write_model(tmp_path / "model", tiny.llama())
    changes = {"optimisation__max_steps": None, "optimisation__num_train_epochs": 2.0}
    run = tiny.train(tmp_path / "run", model, **PACKED, **changes)

    started, ended = tiny.events_of(run, Started)[0], tiny.last_event(run)
    told = started.resolved
    assert isinstance(ended, Finished)
    assert told["train_rows"] == 29
    assert told["train_examples"] < 29 / 2
    assert started.total_steps == run_duration.count_steps(load_recipe(run), told["train_examples"])
    # Padding is not among them.
    assert ended.metrics["tokens"] == 2 * told["train_tokens"]


@pytest.mark.parametrize("judged", [False, True])
def test_packing_preview_matches_training_packs(judged: bool, tmp_path: Path) -> None:  # noqa: FBT001 -- a case
    rows = tiny.rows()
    if judged:
        rows = [row | {"label": number % 3 > 0} for number, row in enumerate(rows)]
    run = tiny.write_run(
        tmp_path / "run", tiny.write_model(tmp_path / "model", tiny.llama()), **PACKED
    )
    path = tiny.write_rows(run.root / "train.jsonl", rows)
    recipe = load_recipe(run)
    job = TrainingJob.prepare(recipe, run, lambda _phase: None)
    numbers = [row.number for row in job.train.rows]
    assert job.train.packs is not None
    learnt = [[numbers[place] for place in pack] for pack in job.train.packs]

    share, seed = recipe.data.validation_share, recipe.optimisation.seed
    window = PackingWindow(
        path=str(path), start=0, rows=len(rows), judged=judged, share=share, seed=seed
    )
    asked = TokenizerRequest(
        kind="tokens", model="", row={}, number=1, max_length=100, window=window
    )
    with path.open("rb") as file:
        sizes = packing.measure_rows(asked, tiny.tokenizer(), file)
    every = [asked.model_copy(update={"number": number}) for number in range(1, len(rows) + 1)]
    seen = [list(packing.rows_packed_with(one, sizes)) for one in every]

    assert [pack for pack in seen if pack] == [
        next(pack for pack in learnt if number in pack) for number in sorted(numbers)
    ]
    assert sizes.held == [row.number for row in job.validation.rows]


def test_resumed_packed_run_equals_uninterrupted_run(tmp_path: Path) -> None:
    model = tiny.write_model(tmp_path / "model", tiny.llama())

    assert_equal_after(7, model, tmp_path, **LORA, **PACKED)


@pytest.mark.smoke
def test_first_token_of_packed_row_has_no_label() -> None:
    reader = tiny.tokenizer()
    rows = [TrainingRow(text=text, number=i) for i, text in enumerate(("One two", "Three four"), 1)]
    apart = tokenisation.tokenise(rows, None, reader, 100)
    spoiled = [row | {"labels": row["input_ids"]} for row in tokenisation.row_tensors(apart.data)]

    shared = packed_dataset.PackedDataset(spoiled, [[0, 1]])[0]

    starts = shared["position_ids"] == 0
    assert starts.sum() == 2
    assert torch.equal(shared["labels"] == IGNORE_INDEX, starts)


def test_padding_has_its_own_position_ids() -> None:
    long, short = ({"input_ids": torch.arange(n), "labels": torch.arange(n)} for n in (3, 2))
    examples = packed_dataset.PackedDataset([long, short], [[0, 1], [1]])

    batch = tokenisation.Collator(0)([examples[0], examples[1]])

    assert batch["position_ids"].tolist() == [[0, 1, 2, 0, 1], [0, 1, 0, 1, 2]]
    assert batch["tokens"].tolist() == [5, 2]
    assert "attention_mask" not in batch
