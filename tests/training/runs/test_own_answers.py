"""Distillation on answers that the student writes itself."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM
from trl.trainer.distillation_trainer import _chunked_divergence_loss

from studio.methods.distil.on_policy import OnPolicyTrainer
from studio.protocols.events import Failed, Finished
from studio.runner.execution import execute_run
from studio.training.data.labels import IGNORE_INDEX
from studio.training.stop_handler import StopHandler
from tests.training import taught, tiny
from tests.training.checkpoints import resumed_runs
from tests.training.checkpoints.resumed_runs import SAVED, STEPS
from tests.training.runs.test_distillation import AGREEMENT, TEXTS
from tests.training.tiny import LORA, Changes, Row

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def teacher(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return taught.make_teacher(tmp_path_factory.mktemp("teacher") / "run", model)


OWN: Changes = {
    "distillation__answers": "student",
    "distillation__beta": 1.0,
    "distillation__max_new_tokens": 12,
}


def make_trainer(root: Path, model: Path, teacher: Path) -> OnPolicyTrainer:
    trainer = taught.make_trainer(taught.write_run(root, model, teacher, OWN))
    assert isinstance(trainer, OnPolicyTrainer)
    return trainer


@pytest.mark.parametrize(
    "adapter",
    [
        pytest.param({}, id="full"),
        pytest.param(LORA | {"adapter__extra_modules": "embeddings"}, id="lora"),
    ],
)
def test_student_learns_on_its_own_answers(
    adapter: Changes, model: Path, teacher: Path, tmp_path: Path
) -> None:
    """It starts from a model that answers at all."""
    start = taught.make_teacher(tmp_path / "start", model, optimisation__max_steps=25)
    changes = adapter | OWN | {"optimisation__max_steps": 60, "optimisation__learning_rate": 3e-3}
    run = taught.train(tmp_path / "run", start, teacher, changes)

    assert isinstance(tiny.last_event(run), Finished), tiny.last_event(run)
    divergence = tiny.metric_values(run, "eval_loss")
    agreement = tiny.metric_values(run, AGREEMENT)
    assert divergence[-1] < 0.5 * divergence[0]
    assert agreement[-1] > agreement[0] + 0.1


def test_student_writes_what_follows_the_last_prompt(
    model: Path, teacher: Path, tmp_path: Path
) -> None:
    trainer = make_trainer(tmp_path / "run", model, teacher)
    batch = trainer.data_collator(trainer.train_dataset[:5])
    first, again = (trainer._write_answers([batch])[0] for _ in range(2))
    trainer.state.global_step = 1
    later = trainer._write_answers([batch])[0]

    assert torch.equal(first["input_ids"], again["input_ids"])
    assert not torch.equal(first["input_ids"], later["input_ids"])
    reader = tiny.tokenizer()
    for given, written, labels in zip(
        batch["input_ids"], first["input_ids"], first["labels"], strict=True
    ):
        prompt = written[labels == IGNORE_INDEX]
        start = int((labels != IGNORE_INDEX).nonzero()[0])
        assert torch.equal(given[:start], written[:start])
        assert reader.decode(prompt[:start]).endswith("assistant\n")
        answer = written[labels != IGNORE_INDEX].tolist()
        assert 1 <= len(answer) <= 12
        assert answer == labels[labels != IGNORE_INDEX].tolist()
        assert len(answer) == 12 or answer[-1] == reader.eos_token_id


def test_loss_on_written_answers_is_that_of_trl(model: Path, teacher: Path, tmp_path: Path) -> None:
    """TRL's distillation trainer computes the same on the same answers."""
    trainer = make_trainer(tmp_path / "run", model, teacher)
    batch = trainer._write_answers([trainer.data_collator(trainer.train_dataset[:5])])[0]
    models = [AutoModelForCausalLM.from_pretrained(folder) for folder in (model, teacher)]
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    hidden = [one.model(**inputs).last_hidden_state[:, :-1] for one in models]
    heads = [one.lm_head.weight for one in models]
    mask = (batch["labels"][:, 1:] != IGNORE_INDEX).long()
    expected, _entropy, count = _chunked_divergence_loss(*hidden, *heads, mask, beta=1.0)

    assert taught.loss_of(trainer, batch) == pytest.approx(float(expected.detach()), rel=1e-5)
    assert count == mask.sum()


def test_answers_of_a_whole_step_are_counted_together(
    model: Path, teacher: Path, tmp_path: Path
) -> None:
    """The loss of an accumulated batch is the mean over all its answer tokens."""
    changes = OWN | {"optimisation__per_device_train_batch_size": 2}
    trainer = taught.make_trainer(taught.write_run(tmp_path / "run", model, teacher, changes))
    batches = [
        trainer.data_collator(trainer.train_dataset[start : start + 2]) for start in (0, 2, 4)
    ]
    written, count = trainer.get_batch_samples(iter(batches), 3, trainer.args.device)
    tokens = sum(int((batch["labels"][:, 1:] != IGNORE_INDEX).sum()) for batch in written)

    assert (len(written), count) == (3, tokens)


@pytest.mark.parametrize("precision", ["bf16", "fp16", "fp32_bf16_matmul", "bf16_kahan", "fp8"])
def test_students_write_in_every_precision(
    precision: str, model: Path, teacher: Path, tmp_path: Path
) -> None:
    changes = OWN | {"precision": precision, "optimisation__max_steps": 8}
    run = taught.train(tmp_path / "run", model, teacher, changes)

    assert isinstance(tiny.last_event(run), Finished), tiny.last_event(run)


@pytest.mark.parametrize(
    "changes",
    [{"precision": "bf16_dual"}, LORA | {"precision": "bf16", "adapter__lora_dropout": 0.2}],
    ids=["full", "lora"],
)
def test_resumed_student_writes_the_same_answers(
    changes: Changes, model: Path, teacher: Path, tmp_path: Path
) -> None:
    whole = taught.train(tmp_path / "whole", model, teacher, STEPS | SAVED | OWN | changes)
    again = resumed_runs.interrupt_run(whole, 7, tmp_path / "again")

    assert execute_run(again.root, StopHandler()) == 0
    assert resumed_runs.curve(again) == resumed_runs.curve(whole)
    assert resumed_runs.bits(again) == resumed_runs.bits(whole)


@pytest.mark.parametrize(
    ("changes", "rows", "message"),
    [
        ({"distillation__hard_weight": 0.1}, None, "are not those of the dataset"),
        ({"data__packing": True}, None, "cannot be packed"),
        ({}, TEXTS, "is plain text, which has no prompt"),
    ],
)
def test_what_a_student_cannot_write_is_refused(
    changes: Changes,
    rows: list[Row] | None,
    message: str,
    model: Path,
    teacher: Path,
    tmp_path: Path,
) -> None:
    failed = tiny.last_event(taught.train(tmp_path / "run", model, teacher, OWN | changes, rows))

    assert isinstance(failed, Failed)
    assert message in failed.message


def test_time_limit_counts_the_writing(model: Path, teacher: Path, tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path / "run", model, teacher)
    batch = trainer.data_collator(trainer.train_dataset[:5])
    trainer.model.train()
    timed = trainer.compute_loss(trainer.model, dict(batch))
    written = trainer._write_answers([batch])[0]

    assert float(timed.detach()) == pytest.approx(taught.loss_of(trainer, written), rel=1e-6)
