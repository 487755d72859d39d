"""Learning from ratings: real runs on answers that are rated good or bad."""

from pathlib import Path

import pytest
import yaml

from studio.methods.kto import KTORecipe
from studio.methods.kto.trainer import RatingTrainer, build, tokenise
from studio.protocols.events import Failed, Finished, PhaseChanged, Sampled
from studio.protocols.run_dir import JobSpec, RunDir
from studio.protocols.tasks import TaskDir
from studio.runner.execution import execute_run
from studio.runner.tasks.memory_dry_run import measure
from studio.runner.training_run import load_recipe
from studio.training.job import TrainingJob
from studio.training.stop_handler import StopHandler
from tests.training import tiny
from tests.training.checkpoints import resumed_runs
from tests.training.checkpoints.resumed_runs import SAVED, STEPS
from tests.training.tiny import LORA, Changes, Row

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::FutureWarning")]


def question(one: int, two: int) -> list[Row]:
    return [{"role": "user", "content": f"What is {one} plus {two}?"}]


def answer(one: int, two: int, *, is_good: bool) -> list[Row]:
    content = f"{one} plus {two} is {one + two}." if is_good else f"{one} plus {two} is many."
    return [{"role": "assistant", "content": content}]


def rated(one: int, two: int, *, is_good: bool) -> Row:
    return {
        "messages": question(one, two) + answer(one, two, is_good=is_good),
        "label": is_good,
    }


RATED = [rated(one, two, is_good=(one + two) % 3 > 0) for one in range(6) for two in range(6)]
PAIRS = [
    {
        "messages": question(one, two),
        "chosen": answer(one, two, is_good=True),
        "rejected": answer(one, two, is_good=False),
    }
    for one in range(4)
    for two in range(4)
]


runs = tiny.Runs(RATED, method="kto")
write_run, train = runs.write, runs.train


def make_trainer(run: RunDir) -> RatingTrainer:
    recipe = load_recipe(run)
    assert isinstance(recipe, KTORecipe)
    job = TrainingJob.prepare(recipe, run, lambda _phase: None, tokenise=tokenise)
    trainer = build(recipe, job)
    trainer.score_reference(lambda _phase: None)
    return trainer


@pytest.mark.parametrize("rows", [RATED, PAIRS], ids=["rated", "pairs"])
@pytest.mark.parametrize("adapter", [{}, LORA], ids=["full", "lora"])
def test_model_learns_to_tell_good_answers_from_bad_ones(
    adapter: Changes, rows: list[Row], model: Path, tmp_path: Path
) -> None:
    run = train(tmp_path / "run", model, adapter | {"optimisation__max_steps": 24}, rows)

    assert isinstance(tiny.last_event(run), Finished)
    margins = tiny.metric_values(run, "eval_rating_margin")
    assert margins[0] == pytest.approx(0, abs=1e-4)
    assert margins[-1] > 0.1


@pytest.mark.parametrize("loss", ["kto", "apo_zero_unpaired", "bco"])
def test_loss_begins_where_the_model_is_its_reference(
    loss: str, model: Path, tmp_path: Path
) -> None:
    """All rewards and the divergence are 0, and both ratings count equally as a whole."""
    run = train(tmp_path / "run", model, {"rating__loss_type": loss})
    trainer = make_trainer(run)
    good, bad = trainer.weights
    rows = trainer.eval_dataset
    weights = sum(good if int(row["is_good"]) else bad for row in rows) / len(rows)

    each = 0.693147 if loss == "bco" else 0.5
    assert tiny.metric_values(run, "eval_loss")[0] == pytest.approx(each * weights, abs=1e-4)


def test_each_rating_counts_equally_as_a_whole(model: Path, tmp_path: Path) -> None:
    trainer = make_trainer(write_run(tmp_path / "run", model))
    ratings = [int(row["is_good"]) for row in trainer.train_dataset]
    good, bad = trainer.weights

    assert sum(ratings) > len(ratings) / 2
    assert good * sum(ratings) == pytest.approx(bad * (len(ratings) - sum(ratings)))


@pytest.mark.parametrize("loss", ["kto", "apo_zero_unpaired", "bco"])
def test_precomputed_reference_equals_adapter_off(loss: str, model: Path, tmp_path: Path) -> None:
    curves = []
    for reference in ("adapter_off", "precomputed"):
        changes = {"rating__loss_type": loss, "rating__reference": reference}
        run = train(tmp_path / reference, model, LORA | changes)
        phases = [event.name for event in tiny.events_of(run, PhaseChanged)]
        assert ("scoring the reference" in phases) == (reference == "precomputed")
        curves.append(tiny.metric_values(run, "loss"))

    assert curves[0] == pytest.approx(curves[1], rel=1e-5)
    assert len(curves[0]) == 3


@pytest.mark.parametrize("loss", ["kto", "bco"])
def test_batch_size_and_accumulation_do_not_change_the_loss(
    loss: str, model: Path, tmp_path: Path
) -> None:
    curves = [
        [
            tiny.metric_values(run, name)
            for run in [
                train(
                    tmp_path / f"{size}",
                    model,
                    {
                        "rating__loss_type": loss,
                        "rating__beta": 1.0,
                        "optimisation__per_device_train_batch_size": size,
                        "optimisation__gradient_accumulation_steps": times,
                        "optimisation__train_sampling_strategy": "sequential",
                    },
                )
            ]
            for name in ("loss", "eval_loss", "divergence")
        ]
        for size, times in ((4, 1), (2, 2), (1, 4))
    ]

    for curve in curves[1:]:
        for found, expected in zip(curve, curves[0], strict=True):
            assert found == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_other_answer_follows_the_same_prompt(model: Path, tmp_path: Path) -> None:
    """The divergence is estimated from answers that belong to other prompts, also of pairs."""
    trainer = make_trainer(write_run(tmp_path / "run", model, rows=PAIRS))
    reader = tiny.tokenizer()
    for row in trainer.train_dataset:
        own, other = (reader.decode(row[name]) for name in ("input_ids", "other_ids"))
        end = own.index("?")
        assert own[:end] == other[:end]
        sums = [text[end:].split(" is ")[0].split()[-3:] for text in (own, other)]
        assert sums[0] != sums[1]


def test_a_pair_becomes_a_good_and_a_bad_answer(model: Path, tmp_path: Path) -> None:
    trainer = make_trainer(write_run(tmp_path / "run", model, rows=PAIRS))
    ratings = [int(row["is_good"]) for row in trainer.train_dataset]

    assert ratings == [1, 0] * (len(ratings) // 2)


@pytest.mark.parametrize(
    ("rows", "changes", "code", "message"),
    [
        (tiny.rows(), {}, "bad_row", "Row 1 of the training data has no rating"),
        ([row for row in RATED if row["label"]], {}, "bad_row", "are rated good"),
        ([row for row in RATED if not row["label"]], {}, "bad_row", "are rated bad"),
        (RATED, {"data__max_length": 16}, "sequence_too_long", "before their answers begin"),
        (RATED, {"data__packing": True}, "conflict", "cannot be packed"),
        (RATED, {"rating__bad_weight": 2.0}, "conflict", "Only one of the two weights"),
        (RATED, LORA | {"adapter__lora_dropout": 0.1}, "conflict", "Dropout makes the model"),
        (RATED, {"rating__reference": "adapter_off"}, "conflict", "no adapter to turn off"),
    ],
)
def test_what_cannot_be_rated_is_refused(
    rows: list[Row], changes: Changes, code: str, message: str, model: Path, tmp_path: Path
) -> None:
    failed = tiny.last_event(train(tmp_path / "run", model, changes, rows))

    assert isinstance(failed, Failed)
    assert (failed.code, message in failed.message) == (code, True)


@pytest.mark.parametrize("precision", ["bf16", "fp16", "bf16_kahan", "fp32_bf16_matmul"])
def test_margin_begins_near_zero_in_every_precision(
    precision: str, model: Path, tmp_path: Path
) -> None:
    run = train(tmp_path / "run", model, {"precision": precision})

    assert isinstance(tiny.last_event(run), Finished)
    assert abs(tiny.metric_values(run, "eval_rating_margin")[0]) < 0.02


@pytest.mark.parametrize(
    "changes",
    [
        {"precision": "bf16_dual"},
        LORA | {"precision": "bf16"},
        {"rating__loss_type": "bco"},
        LORA | {"rating__loss_type": "apo_zero_unpaired"},
    ],
    ids=["full", "adapter off", "running mean", "no divergence"],
)
def test_resumed_run_equals_an_uninterrupted_one(
    changes: Changes, model: Path, tmp_path: Path
) -> None:
    whole = train(tmp_path / "whole", model, STEPS | SAVED | changes)
    again = resumed_runs.interrupt_run(whole, 7, tmp_path / "again")

    assert execute_run(again.root, StopHandler()) == 0
    assert resumed_runs.resumed_at(again) == [(2, 7)]
    assert resumed_runs.curve(again) == resumed_runs.curve(whole)
    assert resumed_runs.result(again) == resumed_runs.result(whole)
    assert resumed_runs.bits(again) == resumed_runs.bits(whole)


def test_dry_run_reads_one_sequence_per_answer(model: Path, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", model)
    folder = TaskDir(tmp_path / "task")
    folder.files.mkdir(parents=True)
    params = {"recipe": load_recipe(run).model_dump(mode="json"), "job": run.job.read_text()}
    found = measure(folder, params, lambda _phase, _share: None)

    assert found["train_rows"] == len(make_trainer(run).train_dataset)
    assert found["at_peak"]["activations"] > 0


def test_runs_of_the_same_data_share_its_tokens(model: Path, tmp_path: Path) -> None:
    """Also where a row became two examples."""
    runs = [write_run(tmp_path / name, model, rows=PAIRS) for name in "ab"]
    for run in runs:
        spec = JobSpec.model_validate_json(run.job.read_text(encoding="utf-8"))
        cached = spec.model_copy(update={"cache": tmp_path / "cache"})
        run.job.write_text(cached.model_dump_json(), encoding="utf-8")
    first, second = (make_trainer(run) for run in runs)

    assert len(list((tmp_path / "cache").iterdir())) == 2
    for one, two in zip(first.train_dataset, second.train_dataset, strict=True):
        assert {name: part.tolist() for name, part in one.items()} == {
            name: part.tolist() for name, part in two.items()
        }


def test_card_and_answers(model: Path, tmp_path: Path) -> None:
    run = train(tmp_path / "run", model, {"samples__prompts": 2}, PAIRS)

    card = (run.artifacts / "README.md").read_text(encoding="utf-8")
    front = yaml.safe_load(card.split("---")[1])
    assert front["tags"][1:3] == ["kto", "preference-optimization"]
    assert "aligned by ratings" in card
    prompts = [event.prompt for event in tiny.events_of(run, Sampled) if event.stage == "before"]
    assert len(prompts) == len(set(prompts)) == 2
    assert {event.reference for event in tiny.events_of(run, Sampled)} == {""}
