"""New tokens: how they start, in real runs, saved, resumed and refused."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from studio.protocols.events import Failed, Finished
from studio.protocols.inference_service import GenerationRequest
from studio.runner.execution import execute_run
from studio.runner.inference.model_cache import ModelCache
from studio.runner.training_run import load_recipe
from studio.training.job import TrainingJob
from studio.training.models import loader, new_tokens, tokenizers
from studio.training.stop_handler import StopHandler
from tests.training import tiny
from tests.training.checkpoints import resumed_runs
from tests.training.checkpoints.resumed_runs import SAVED, STEPS
from tests.training.export.test_export import exported, logits
from tests.training.models.test_trained_weights import small

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

NEW: dict[str, Any] = {"model__new_tokens": "plus , <tool>"}
TEXTS = ("plus", "<tool>")
TABLES = ("model.embed_tokens.weight", "lm_head.weight")


@pytest.fixture(params=["llama", "tied llama"])
def base(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Make a model whose tables are as long as its vocabulary, untied and tied."""
    config = small(request.param)
    config.vocab_size = len(tiny.tokenizer())
    return tiny.write_model(tmp_path / "base", config)


@pytest.mark.smoke
def test_new_tokens_start_as_the_mean_of_their_pieces(base: Path) -> None:
    tokenizer = tokenizers.load(str(base))
    before = {text: tokenizer.encode(text, add_special_tokens=False) for text in TEXTS}
    config = loader.load_config(str(base))
    model = loader.load_model(str(base), config, "float32")
    pieces = new_tokens.add(tokenizer, TEXTS)
    new_tokens.extend(model, tokenizer, pieces)
    original = load_file(base / "model.safetensors")

    for layer, name in zip(
        (model.get_input_embeddings(), model.get_output_embeddings()), TABLES, strict=True
    ):
        table = original.get(name, original[TABLES[0]])
        assert torch.equal(layer.weight[: len(table)], table)
        for text in TEXTS:
            (token,) = tokenizer.encode(text, add_special_tokens=False)
            torch.testing.assert_close(layer.weight[token], table[before[text]].mean(0))
    assert model.config.vocab_size == len(tokenizer)


@pytest.mark.smoke
@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16_kahan"])
def test_run_trains_and_saves_them(precision: str, base: Path, tmp_path: Path) -> None:
    run = tiny.train(tmp_path / "run", base, **NEW, precision=precision)
    assert isinstance(tiny.last_event(run), Finished)
    losses = tiny.metric_values(run, "eval_loss")
    assert losses[-1] < losses[0]

    folder, _metrics = exported(run, "float32", "full")
    reader = AutoTokenizer.from_pretrained(folder.files)
    trained, plain = map(AutoModelForCausalLM.from_pretrained, (run.artifacts, folder.files))
    assert len(reader.encode("plus", add_special_tokens=False)) == 1
    assert plain.get_input_embeddings().num_embeddings == len(reader)
    assert torch.equal(logits(plain), logits(trained.float()))
    is_tied = "lm_head.weight" not in load_file(base / "model.safetensors")
    assert (plain.lm_head.weight is plain.model.embed_tokens.weight) == is_tied


def test_rows_are_read_with_the_new_tokens(base: Path, tmp_path: Path) -> None:
    run = tiny.write_run(tmp_path / "run", base, **NEW)
    job = TrainingJob.prepare(load_recipe(run), run, lambda _phase: None)
    (token,) = job.tokenizer.encode("plus", add_special_tokens=False)

    assert all(token in ids for ids in job.train.data["input_ids"])


def test_resumed_run_equals_uninterrupted_run(base: Path, tmp_path: Path) -> None:
    whole = tiny.train(tmp_path / "whole", base, **STEPS, **SAVED, **NEW)
    again = resumed_runs.interrupt_run(whole, 7, tmp_path / "again")

    assert execute_run(again.root, StopHandler()) == 0
    assert resumed_runs.curve(again) == resumed_runs.curve(whole)
    assert resumed_runs.bits(again) == resumed_runs.bits(whole)


def test_checkpoint_answers_with_the_run_s_own_tokenizer(base: Path, tmp_path: Path) -> None:
    run = tiny.train(tmp_path / "run", base, **STEPS, **SAVED, **NEW)
    newest = max(run.checkpoints.iterdir(), key=lambda path: int(path.name.split("-")[1]))
    asked = GenerationRequest(
        model=str(base), weights=str(newest), tokenizer=str(run.tokenizer), ids=[3], stops=[]
    )
    with ModelCache().model_for(asked) as (model, tokenizer):
        saved = AutoModelForCausalLM.from_pretrained(run.artifacts)
        assert torch.equal(logits(model.float()), logits(saved.float()))
        assert len(tokenizer.encode("plus", add_special_tokens=False)) == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model__new_tokens": "<|im_end|>"}, "already has the token <|im_end|>"),
        (NEW | {"adapter__kind": "ia3"}, "cannot train the embeddings of new tokens alone"),
        (NEW | {"adapter__trained_layers": 1}, "the embeddings are not trained"),
    ],
    ids=["known", "adapter", "frozen embeddings"],
)
def test_what_cannot_be_trained_is_refused(
    changes: dict[str, Any], message: str, base: Path, tmp_path: Path
) -> None:
    failed = tiny.last_event(tiny.train(tmp_path / "run", base, **changes))

    assert isinstance(failed, Failed)
    assert (failed.code, message in failed.message) == ("conflict", True)
