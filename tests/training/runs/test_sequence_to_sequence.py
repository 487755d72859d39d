"""Sequence to sequence: real runs of encoder-decoder models, from recipe to artifacts."""

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    BartConfig,
    LongT5Config,
    MarianConfig,
    MT5Config,
    PegasusConfig,
    PreTrainedConfig,
    T5Config,
    UMT5Config,
)

from studio.methods.seq2seq import METHOD, Seq2SeqRecipe
from studio.methods.seq2seq.trainer import PairTrainer, answer_losses, build, tokenise
from studio.protocols.events import Failed, Finished, Sampled, Started
from studio.protocols.run_dir import RunDir
from studio.runner.execution import execute_run
from studio.runner.training_run import load_recipe
from studio.training.job import TrainingJob
from studio.training.stop_handler import StopHandler
from tests.training import tiny
from tests.training.checkpoints import resumed_runs
from tests.training.checkpoints.resumed_runs import SAVED, STEPS
from tests.training.tiny import LORA, Changes, Row

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::FutureWarning")]

_SIDES = {"encoder_layers": 2, "decoder_layers": 2}
_HEADS = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
_WIDTHS = {"d_model": 32, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}
_TOKENS = {"vocab_size": 320, "pad_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 0}
_BART: dict[str, Any] = {**_SIDES, **_HEADS, **_WIDTHS, **_TOKENS, "bos_token_id": 0}
_T5: dict[str, Any] = {
    "d_model": 32,
    "d_kv": 16,
    "d_ff": 64,
    "num_layers": 2,
    "num_heads": 2,
    **_TOKENS,
}
FAMILIES: dict[str, PreTrainedConfig] = {
    "t5": T5Config(**_T5),
    "mt5": MT5Config(**_T5, dropout_rate=0.0),
    "umt5": UMT5Config(**_T5, dropout_rate=0.0),
    "longt5": LongT5Config(**_T5, dropout_rate=0.0, local_radius=8),
    "t5_v1_1": T5Config(
        d_model=32,
        d_kv=16,
        d_ff=64,
        num_layers=2,
        num_heads=2,
        feed_forward_proj="gated-gelu",
        dropout_rate=0.0,
        tie_word_embeddings=False,
        **_TOKENS,
    ),
    "bart": BartConfig(**_BART, max_position_embeddings=128, forced_eos_token_id=None),
    "marian": MarianConfig(**_BART, max_position_embeddings=128, forced_eos_token_id=None),
    "pegasus": PegasusConfig(**_BART, max_position_embeddings=128, forced_eos_token_id=None),
}


def pair(one: int, two: int) -> Row:
    return {
        "messages": [
            {"role": "user", "content": f"{one} and {two}"},
            {"role": "assistant", "content": f"{two} and {one}"},
        ]
    }


PAIRS = [pair(one, two) for one, two in product(range(8), repeat=2)]
LEARNS: Changes = {
    "optimisation__max_steps": 60,
    "optimisation__per_device_train_batch_size": 16,
    "optimisation__learning_rate": 0.01,
    "rewriting__judged_answers": 4,
}


def write_model(folder: Path, family: str) -> Path:
    """Save a random model of a family, with a tokenizer that has no chat template."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        AutoModelForSeq2SeqLM.from_config(FAMILIES[family]).save_pretrained(folder)
    reader = tiny.tokenizer()
    reader.chat_template = None
    reader.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Save a random model of each family."""
    root = tmp_path_factory.mktemp("models")
    return {name: write_model(root / name, name) for name in FAMILIES}


@pytest.fixture
def t5(models: dict[str, Path]) -> Path:
    return models["t5"]


runs = tiny.Runs(PAIRS, method="seq2seq")
write_run, train = runs.write, runs.train


def make_trainer(run: RunDir) -> PairTrainer:
    recipe = load_recipe(run)
    assert isinstance(recipe, Seq2SeqRecipe)
    job = TrainingJob.prepare(
        recipe, run, lambda _phase: None, tokenise=tokenise, kinds=METHOD.trainable_kinds
    )
    return build(recipe, job)


@pytest.mark.parametrize("family", FAMILIES)
def test_model_learns_to_rewrite(family: str, models: dict[str, Path], tmp_path: Path) -> None:
    run = train(tmp_path / "run", models[family], LEARNS)

    assert isinstance(tiny.last_event(run), Finished), tiny.last_event(run)
    losses = tiny.metric_values(run, "eval_loss")
    assert min(losses) < losses[0] / 2
    scores = tiny.metric_values(run, "eval_chrf_share")
    assert scores[-1] > scores[0] + 0.1


def test_adapter_learns_and_is_merged(t5: Path, tmp_path: Path) -> None:
    run = train(tmp_path / "run", t5, LEARNS | LORA)

    assert isinstance(tiny.last_event(run), Finished), tiny.last_event(run)
    losses = tiny.metric_values(run, "eval_loss")
    assert min(losses) < losses[0] * 0.8
    plain = AutoModelForSeq2SeqLM.from_pretrained(t5)
    loaded = PeftModel.from_pretrained(plain, run.artifacts)
    assert loaded.peft_config["default"].task_type == "SEQ_2_SEQ_LM"


@pytest.mark.parametrize("precision", ["bf16", "bf16_pure"])
def test_precisions_are_measured(precision: str, t5: Path, tmp_path: Path) -> None:
    run = train(tmp_path / "run", t5, LEARNS | {"precision": precision})

    assert isinstance(tiny.last_event(run), Finished), tiny.last_event(run)
    (started,) = tiny.events_of(run, Started)
    assert started.resolved["compute"] == "bfloat16"


def test_batch_size_and_accumulation_do_not_change_the_loss(
    models: dict[str, Path], tmp_path: Path
) -> None:
    """Of a model without dropout, on answers of different lengths."""
    curves = [
        tiny.metric_values(
            train(
                tmp_path / f"{size}",
                models["t5_v1_1"],
                {
                    "optimisation__per_device_train_batch_size": size,
                    "optimisation__gradient_accumulation_steps": times,
                    "optimisation__train_sampling_strategy": "sequential",
                    "rewriting__label_smoothing": 0.1,
                },
                [pair(one, 10**two) for one in range(4) for two in range(6)],
            ),
            "loss",
        )
        for size, times in ((4, 1), (1, 4))
    ]

    assert curves[1] == pytest.approx(curves[0], rel=1e-4)


@pytest.mark.parametrize("changes", [{}, LORA | {"precision": "bf16"}], ids=["full", "lora"])
def test_resumed_run_equals_an_uninterrupted_one(
    changes: Changes, t5: Path, tmp_path: Path
) -> None:
    whole = train(tmp_path / "whole", t5, STEPS | SAVED | changes)
    again = resumed_runs.interrupt_run(whole, 7, tmp_path / "again")

    assert execute_run(again.root, StopHandler()) == 0
    assert resumed_runs.curve(again) == resumed_runs.curve(whole)
    assert resumed_runs.result(again) == resumed_runs.result(whole)
    assert resumed_runs.bits(again) == resumed_runs.bits(whole)


def test_model_loads_and_writes_without_the_studio(t5: Path, tmp_path: Path) -> None:
    """Its loss and its answers are those of the run."""
    run = train(tmp_path / "run", t5, LEARNS | {"samples__prompts": 4})
    model = AutoModelForSeq2SeqLM.from_pretrained(run.artifacts).eval()
    reader = AutoTokenizer.from_pretrained(run.artifacts)
    after = [event for event in tiny.events_of(run, Sampled) if event.stage == "after"]
    loss = tokens = 0
    for row in make_trainer(write_run(tmp_path / "other", t5)).eval_dataset:
        with torch.no_grad():
            found = model(input_ids=row["input_ids"][None], labels=row["labels"][None]).loss
        loss += found.item() * len(row["labels"])
        tokens += len(row["labels"])

    assert loss / tokens == pytest.approx(tiny.metric_values(run, "eval_loss")[-1], rel=1e-4)
    assert len(after) == 4
    for event in after:
        inputs = reader(event.prompt, return_tensors="pt")
        written = model.generate(input_ids=inputs["input_ids"], max_new_tokens=4, do_sample=False)
        assert reader.decode(written[0], skip_special_tokens=True).strip() == event.answer


@pytest.mark.parametrize(
    ("rows", "changes", "message"),
    [
        ([{"text": "A text."}] * 8, {}, "has an answer to train on"),
        (PAIRS, LORA | {"adapter__variant": "eva"}, "encoder-decoder model"),
    ],
)
def test_what_cannot_be_trained_is_refused(
    rows: list[Row], changes: Changes, message: str, t5: Path, tmp_path: Path
) -> None:
    failed = tiny.last_event(train(tmp_path / "run", t5, changes, rows))

    assert isinstance(failed, Failed)
    assert message in failed.message


def test_other_kinds_of_model_are_refused_before_they_load(
    model: Path, t5: Path, tmp_path: Path
) -> None:
    causal = tiny.last_event(train(tmp_path / "causal", model))
    other = tiny.last_event(tiny.train(tmp_path / "other", t5))

    assert isinstance(causal, Failed)
    assert (causal.code, causal.message[:34]) == (
        "unsupported_architecture",
        "This is a causal language model: i",
    )
    assert isinstance(other, Failed)
    assert "encoder-decoder model" in other.message


def test_smoothed_loss_equals_upstreams() -> None:
    from transformers.modeling_outputs import Seq2SeqLMOutput  # noqa: PLC0415 -- here alone
    from transformers.trainer_pt_utils import LabelSmoother  # noqa: PLC0415 -- the same

    torch.manual_seed(0)
    logits, targets = torch.randn(3, 5, 20), torch.randint(20, (3, 5))
    _plain, smoothed = answer_losses(logits.flatten(0, 1), targets.flatten(), 0.2)
    upstream = LabelSmoother(epsilon=0.2)(Seq2SeqLMOutput(logits=logits), targets)

    assert smoothed.mean().item() == pytest.approx(upstream.item(), rel=1e-5)
