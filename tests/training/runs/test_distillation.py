"""Distillation: real runs with a teacher, from recipe to artifacts."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor
from transformers import AutoModelForCausalLM, BertConfig, BertForMaskedLM

from studio.protocols.events import Failed, Finished, Sampled, Started
from studio.recipe.exports import ExportSpec
from studio.run_manifest import Manifest, file_sha256
from studio.runner.execution import execute_export, execute_run
from studio.training.data.labels import IGNORE_INDEX
from studio.training.stop_handler import StopHandler
from tests.training import taught, tiny
from tests.training.checkpoints import resumed_runs
from tests.training.checkpoints.resumed_runs import SAVED, STEPS
from tests.training.runs.test_preferences import PAIRS
from tests.training.tiny import LORA, Changes, Row

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

AGREEMENT = "eval_teacher_agreement_share"
TEXTS: list[Row] = [
    {"text": f"{one} and {two} make {one + two}."} for one in range(6) for two in (1, 2, 3)
]
RATED: list[Row] = [{**row, "label": True} for row in tiny.rows()]


@pytest.fixture(scope="module")
def teacher(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return taught.make_teacher(tmp_path_factory.mktemp("teacher") / "run", model)


@pytest.mark.smoke
@pytest.mark.parametrize(
    "adapter", [{}, LORA | {"adapter__extra_modules": "embeddings"}], ids=["full", "lora"]
)
def test_student_approaches_its_teacher(
    adapter: Changes, model: Path, teacher: Path, tmp_path: Path
) -> None:
    run = taught.train(tmp_path / "run", model, teacher, adapter | {"optimisation__max_steps": 60})

    assert isinstance(tiny.last_event(run), Finished), tiny.last_event(run)
    divergence = tiny.metric_values(run, "eval_loss")
    agreement = tiny.metric_values(run, AGREEMENT)
    assert divergence[-1] < 0.3 * divergence[0]
    assert agreement[-1] > agreement[0] + 0.2
    assert tiny.metric_values(run, "eval_cross_entropy")[-1] < 4


def plain_loss(
    logits: tuple[Tensor, Tensor], labels: Tensor, beta: float, temperature: float, share: float
) -> float:
    """Return the loss in float64 from all logits of student and teacher."""
    mask = labels[:, 1:] != IGNORE_INDEX
    own, other = (values[:, :-1].double()[mask] for values in logits)
    student, expected = ((values / temperature).softmax(-1) for values in (own, other))
    mixture = beta * expected + (1 - beta) * student
    match beta:
        case 0:
            divergence = (expected * (expected / student).log()).sum(-1)
        case 1:
            divergence = (student * (student / expected).log()).sum(-1)
        case _:
            divergence = (
                beta * (expected * (expected / mixture).log())
                + (1 - beta) * (student * (student / mixture).log())
            ).sum(-1)
    cross_entropy = torch.nn.functional.cross_entropy(own, labels[:, 1:][mask])
    return float((1 - share) * divergence.mean() + share * cross_entropy)


@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("temperature", [1.0, 2.5])
@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
def test_loss_is_the_plain_formula(
    beta: float, temperature: float, share: float, model: Path, teacher: Path, tmp_path: Path
) -> None:
    changes = {
        "distillation__beta": beta,
        "distillation__temperature": temperature,
        "distillation__hard_weight": share,
    }
    trainer = taught.make_trainer(taught.write_run(tmp_path / "run", model, teacher, changes))
    batch = trainer.data_collator(trainer.train_dataset[:6])
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    with torch.no_grad():
        logits = tuple(
            AutoModelForCausalLM.from_pretrained(folder)(**inputs).logits
            for folder in (model, teacher)
        )

    loss = taught.loss_of(trainer, batch)
    expected = plain_loss(logits, batch["labels"], beta, temperature, share)
    assert loss == pytest.approx(expected, rel=1e-5)
    read = trainer._losses.read()
    assert read["mean_loss"] == pytest.approx(expected, rel=1e-5)
    assert read["tokens"] == batch["attention_mask"].sum()


def test_cross_entropy_is_that_of_supervised_fine_tuning(
    model: Path, teacher: Path, tmp_path: Path
) -> None:
    changes: Changes = {"optimisation__max_steps": 3}
    run = taught.train(tmp_path / "run", model, teacher, changes)
    supervised = tiny.train(tmp_path / "sft", model, **changes)

    ours = tiny.metric_values(run, "eval_cross_entropy")
    accuracy = tiny.metric_values(run, "eval_mean_token_accuracy")
    assert ours[0] == pytest.approx(tiny.metric_values(supervised, "eval_loss")[0], rel=1e-6)
    assert accuracy[0] == tiny.metric_values(supervised, "eval_mean_token_accuracy")[0]


def test_batch_size_and_accumulation_do_not_change_the_loss(
    model: Path, teacher: Path, tmp_path: Path
) -> None:
    curves = [
        tiny.metric_values(
            taught.train(
                tmp_path / f"{size}",
                model,
                teacher,
                {
                    "optimisation__per_device_train_batch_size": size,
                    "optimisation__gradient_accumulation_steps": times,
                    "optimisation__train_sampling_strategy": "sequential",
                    "distillation__hard_weight": 0.2,
                },
            ),
            "loss",
        )
        for size, times in ((4, 1), (2, 2), (1, 4))
    ]

    assert curves[1] == pytest.approx(curves[0], rel=1e-4)
    assert curves[2] == pytest.approx(curves[0], rel=1e-4)


@pytest.mark.parametrize(
    "rows", [PAIRS, RATED, TEXTS, tiny.rows()], ids=["pairs", "rated", "texts", "conversations"]
)
def test_all_rows_of_supervised_fine_tuning_are_read(
    rows: list[Row], model: Path, teacher: Path, tmp_path: Path
) -> None:
    run = taught.train(tmp_path / "run", model, teacher, {}, rows)
    supervised = tiny.train(tmp_path / "sft", model, rows)

    assert isinstance(tiny.last_event(run), Finished), tiny.last_event(run)
    (ours,), (theirs,) = (tiny.events_of(one, Started) for one in (run, supervised))
    assert ours.resolved["train_tokens"] == theirs.resolved["train_tokens"]


@pytest.mark.parametrize(
    ("precision", "adapter"),
    [
        *((mode, {}) for mode in ("fp32", "bf16", "fp16", "fp32_bf16_matmul")),
        *(
            (mode, {})
            for mode in ("bf16_dual", "bf16_pure", "bf16_stochastic", "bf16_kahan", "fp8")
        ),
        *((mode, LORA) for mode in ("fp32", "bf16", "fp16", "fp32_bf16_matmul")),
        ("bf16", LORA | {"adapter__base_dtype": "bfloat16"}),
        ("fp16", LORA | {"adapter__base_dtype": "float16"}),
        ("bf16", LORA | {"adapter__base_dtype": "int8"}),
        ("bf16", LORA | {"adapter__base_dtype": "nf4"}),
    ],
)
def test_every_precision_learns(
    precision: str, adapter: Changes, model: Path, teacher: Path, tmp_path: Path
) -> None:
    changes = {
        "precision": precision,
        "optimisation__max_steps": 24,
        "distillation__hard_weight": 0.1,
    }
    run = taught.train(tmp_path / "run", model, teacher, adapter | changes)

    assert isinstance(tiny.last_event(run), Finished), tiny.last_event(run)
    divergence = tiny.metric_values(run, "eval_loss")
    # An adapter alone learns little beside the random output layer of this model.
    assert divergence[-1] < (0.99 if adapter else 0.6) * divergence[0]


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ("native", torch.float32),
        ("float32", torch.float32),
        ("bfloat16", torch.bfloat16),
        ("float16", torch.float16),
    ],
)
def test_teacher_keeps_its_own_format_whatever_the_student_computes_in(
    chosen: str, expected: torch.dtype, model: Path, teacher: Path, tmp_path: Path
) -> None:
    changes = {"precision": "bf16", "distillation__teacher_dtype": chosen}
    trainer = taught.make_trainer(taught.write_run(tmp_path / "run", model, teacher, changes))
    batch = trainer.data_collator(trainer.train_dataset[:4])
    with trainer.compute_loss_context_manager():
        read = trainer._read_teacher(batch)

    assert {weight.dtype for weight in trainer.teacher.parameters()} == {expected}
    assert (read.hidden.dtype, read.layer.dtype) == (expected, expected)
    plain = AutoModelForCausalLM.from_pretrained(teacher, dtype=expected)
    logits = plain(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    mask = batch["labels"][:, 1:] != IGNORE_INDEX
    difference = read.layer.logits(read.hidden) - logits[:, :-1][mask].float()
    assert float(difference.detach().abs().max()) < (1e-5 if expected is torch.float32 else 0.1)


def test_native_format_is_that_of_the_files(model: Path, teacher: Path, tmp_path: Path) -> None:
    narrow = tmp_path / "narrow"
    AutoModelForCausalLM.from_pretrained(teacher, dtype=torch.bfloat16).save_pretrained(narrow)
    tiny.tokenizer().save_pretrained(narrow)
    trainer = taught.make_trainer(taught.write_run(tmp_path / "run", model, narrow))

    assert {weight.dtype for weight in trainer.teacher.parameters()} == {torch.bfloat16}


def test_teacher_is_frozen_and_without_dropout(model: Path, teacher: Path, tmp_path: Path) -> None:
    dropping = tmp_path / "dropping"
    shutil.copytree(teacher, dropping)
    config = AutoModelForCausalLM.from_pretrained(teacher).config
    config.attention_dropout = 0.5
    config.save_pretrained(dropping)
    trainer = taught.make_trainer(taught.write_run(tmp_path / "run", model, dropping))
    before = {name: weight.clone() for name, weight in trainer.teacher.named_parameters()}
    batch = trainer.data_collator(trainer.train_dataset[:4])
    first = trainer._read_teacher(batch).hidden
    trainer.train()
    second = trainer._read_teacher(batch).hidden

    assert torch.equal(first, second)
    assert not second.requires_grad
    assert not any(part.training for part in trainer.teacher.modules())
    for name, weight in trainer.teacher.named_parameters():
        assert torch.equal(weight, before[name])
        assert weight.grad is None


def test_padded_vocabulary_of_the_teacher_does_not_count(
    model: Path, teacher: Path, tmp_path: Path
) -> None:
    padded = tmp_path / "padded"
    shutil.copytree(teacher, padded)
    wide = AutoModelForCausalLM.from_pretrained(teacher)
    wide.resize_token_embeddings(384, mean_resizing=False)
    wide.save_pretrained(padded)
    losses = []
    for name, folder in (("narrow", teacher), ("wide", padded)):
        trainer = taught.make_trainer(taught.write_run(tmp_path / name, model, folder))
        losses.append(taught.loss_of(trainer, trainer.data_collator(trainer.train_dataset[:6])))

    assert losses[0] == losses[1]


@pytest.mark.parametrize(
    "changes",
    [
        {"precision": "bf16_dual"},
        LORA | {"precision": "bf16", "adapter__lora_dropout": 0.2},
        LORA | {"adapter__variant": "pissa", "distillation__hard_weight": 0.3},
        {"precision": "fp16"},
    ],
    ids=["full", "lora", "pissa", "fp16"],
)
def test_resumed_run_equals_an_uninterrupted_one(
    changes: Changes, model: Path, teacher: Path, tmp_path: Path
) -> None:
    whole = taught.train(tmp_path / "whole", model, teacher, STEPS | SAVED | changes)
    again = resumed_runs.interrupt_run(whole, 7, tmp_path / "again")

    assert execute_run(again.root, StopHandler()) == 0
    assert resumed_runs.resumed_at(again) == [(2, 7)]
    assert resumed_runs.curve(again) == resumed_runs.curve(whole)
    assert resumed_runs.result(again) == resumed_runs.result(whole)
    assert resumed_runs.bits(again) == resumed_runs.bits(whole)


def test_packed_rows_have_the_loss_of_single_ones(
    model: Path, teacher: Path, tmp_path: Path
) -> None:
    packed = {"data__packing": True, "data__max_length": 90}
    run = taught.train(tmp_path / "run", model, teacher, packed)
    assert isinstance(tiny.last_event(run), Finished), tiny.last_event(run)

    trainer = taught.make_trainer(taught.write_run(tmp_path / "packed", model, teacher, packed))
    alone = taught.make_trainer(taught.write_run(tmp_path / "alone", model, teacher))
    loss = taught.loss_of(trainer, trainer.data_collator(list(trainer.train_dataset)))
    expected = taught.loss_of(alone, alone.data_collator(list(alone.train_dataset)))
    assert loss == pytest.approx(expected, rel=1e-4)


def test_answers_are_sampled_and_the_card_names_the_teacher(
    model: Path, teacher: Path, tmp_path: Path
) -> None:
    changes: Changes = {"samples__prompts": 2, "distillation__teacher": str(teacher)}
    run = taught.train(tmp_path / "run", model, teacher, changes)

    assert {event.stage for event in tiny.events_of(run, Sampled)} >= {"before", "after"}
    card = (run.artifacts / "README.md").read_text(encoding="utf-8")
    assert f"distilled from `{teacher.name}` with Mantissa Studio" in card
    assert str(teacher) not in card
    manifest = Manifest.model_validate_json(run.manifest.read_text(encoding="utf-8"))
    assert manifest.teacher is not None
    weights = file_sha256(teacher / "model.safetensors")
    assert manifest.teacher.sha256 == {"model.safetensors": weights}
    front = yaml.safe_load(card.split("---")[1])
    assert "knowledge-distillation" in front["tags"]


@pytest.mark.parametrize("adapter", [{}, LORA], ids=["full", "lora"])
def test_export_loads_without_the_studio(
    adapter: Changes, model: Path, teacher: Path, tmp_path: Path
) -> None:
    run = taught.train(tmp_path / "run", model, teacher, adapter)
    folder = run.export(1)
    folder.root.mkdir(parents=True)
    spec = ExportSpec(run=run.root, kind="merged" if adapter else "full", dtype="float32")
    folder.job.write_text(spec.model_dump_json(), encoding="utf-8")

    assert execute_export(folder.root, StopHandler()) == 0
    trainer = taught.make_trainer(taught.write_run(tmp_path / "other", model, teacher))
    batch = trainer.data_collator(list(trainer.eval_dataset))
    trainer.model.load_state_dict(
        AutoModelForCausalLM.from_pretrained(folder.files).state_dict(), strict=True
    )
    assert taught.loss_of(trainer, batch) == pytest.approx(
        tiny.metric_values(run, "eval_loss")[-1], rel=1e-4
    )


def other_tokenizer(folder: Path, model: Path) -> Path:
    """Copy a model, with a tokenizer that has one more token."""
    shutil.copytree(model, folder)
    tokenizer = tiny.tokenizer()
    tokenizer.add_tokens(["<more>"])
    tokenizer.save_pretrained(folder)
    return folder


def other_end(folder: Path, model: Path) -> Path:
    """Copy a model, with a tokenizer that ends texts with another token."""
    shutil.copytree(model, folder)
    tokenizer = tiny.tokenizer()
    tokenizer.add_special_tokens({"eos_token": "<|im_start|>"})
    tokenizer.save_pretrained(folder)
    return folder


def broken_weights(folder: Path, model: Path) -> Path:
    shutil.copytree(model, folder)
    broken = AutoModelForCausalLM.from_pretrained(model)
    broken.lm_head.weight.data[3] = float("nan")
    broken.save_pretrained(folder)
    return folder


def encoder(folder: Path, _model: Path) -> Path:
    config = BertConfig(
        vocab_size=320,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
    )
    BertForMaskedLM(config).save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (other_tokenizer, "280 tokens instead of 279, such as '<more>'"),
        (
            other_end,
            "The teacher ends a text with <|im_start|>, but the base model with <|im_end|>",
        ),
        (broken_weights, "of the teacher's weights are NaN or infinite"),
        (encoder, "Choose another teacher. This is an encoder"),
        (lambda folder, _model: folder, "The teacher's folder no longer exists"),
        (lambda _folder, _model: "", "The teacher's folder no longer exists"),
    ],
    ids=["tokenizer", "end", "weights", "encoder", "gone", "none"],
)
def test_a_teacher_that_cannot_teach_is_refused(
    make: Any,  # noqa: ANN401 -- a function
    message: str,
    model: Path,
    tmp_path: Path,
) -> None:
    run = taught.train(tmp_path / "run", model, make(tmp_path / "teacher", model))

    failed = tiny.last_event(run)
    assert isinstance(failed, Failed), failed
    assert message in failed.message
    assert failed.hint


def test_new_tokens_are_refused(model: Path, teacher: Path, tmp_path: Path) -> None:
    changes = LORA | {"model__new_tokens": "<tool>"}
    failed = tiny.last_event(taught.train(tmp_path / "run", model, teacher, changes))

    assert isinstance(failed, Failed)
    assert "The teacher does not know new tokens" in failed.message
