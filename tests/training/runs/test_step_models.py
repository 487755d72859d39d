"""Process reward models: what they learn of which steps, and what they count."""

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import AutoConfig, AutoModelForTokenClassification

from studio.methods.prm import METHOD
from studio.methods.prm.steps import tokenise
from studio.methods.prm.trainer import StepAccumulator, choose_head, keep_last
from studio.protocols.events import Failed, Finished, Started
from studio.protocols.run_dir import RunDir
from studio.runner.execution import execute_run
from studio.runner.training_run import load_recipe
from studio.training.data.rated_steps import pieces
from studio.training.job import TrainingJob
from studio.training.stop_handler import StopHandler
from tests.training import tiny
from tests.training.checkpoints import resumed_runs
from tests.training.checkpoints.resumed_runs import SAVED, STEPS
from tests.training.tiny import LORA, Changes, Row

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::FutureWarning")]

RIGHT, WRONG = "{one} plus {two} is {sum}.", "{one} plus {two} is many, I guess."


def solution(one: int, two: int, wrong: int | None) -> Row:
    """Return a sum in three steps, of which one may be wrong."""
    texts = [WRONG if place == wrong else RIGHT for place in range(3)]
    steps = [
        text.format(one=one + place, two=two, sum=one + two + place)
        for place, text in enumerate(texts)
    ]
    return {
        "messages": [{"role": "user", "content": f"What is {one} plus {two}?"}],
        "steps": steps,
        "correct": [place != wrong for place in range(3)],
    }


SOLUTIONS = [
    solution(one, two, wrong) for one in range(5) for two in range(4) for wrong in (None, 0, 1, 2)
]
LEARNS: Changes = {"optimisation__max_steps": 40, "optimisation__learning_rate": 3e-3}
runs = tiny.Runs(SOLUTIONS, method="prm", samples__max_new_tokens=1)
write_run, train = runs.write, runs.train


def prepare(run: RunDir) -> TrainingJob:
    return TrainingJob.prepare(
        load_recipe(run), run, lambda _phase: None, tokenise=tokenise, choose_head=choose_head
    )


@pytest.mark.parametrize("changes", [{}, LORA], ids=["full", "lora"])
def test_model_learns_which_steps_are_wrong(changes: Changes, model: Path, tmp_path: Path) -> None:
    run = train(tmp_path / "run", model, LEARNS | changes)

    assert isinstance(tiny.last_event(run), Finished), tiny.last_event(run)
    scores = tiny.metric_values(run, METHOD.objective.key)
    assert scores[0] < 0.6
    assert max(scores) > 0.9
    assert max(tiny.metric_values(run, "eval_first_error_share")) > 0.9


@pytest.mark.parametrize("precision", ["bf16", "fp16", "bf16_pure"])
def test_scores_are_computed_in_float32(precision: str, model: Path, tmp_path: Path) -> None:
    run = train(tmp_path / "run", model, {"precision": precision})

    assert isinstance(tiny.last_event(run), Finished), tiny.last_event(run)
    (started,) = tiny.events_of(run, Started)
    assert started.resolved["audit"]["formats"]["Float32Linear"] == "float32"


def test_verdict_stands_at_the_last_token_of_its_step(model: Path, tmp_path: Path) -> None:
    job = prepare(write_run(tmp_path / "run", model))
    reader = tiny.tokenizer()

    for example, row in zip(job.train.data.with_format("torch"), job.train.rows, strict=True):
        places = (example["labels"] != -100).nonzero().flatten().tolist()
        bounds = [0, *(place + 1 for place in places)]
        read = [reader.decode(example["input_ids"][start:end]) for start, end in pairwise(bounds)]
        assert [text.endswith(step) for text, step in zip(read, pieces(row.steps), strict=True)]
        assert read[1:] == list(pieces(row.steps))[1:]
        assert example["labels"][places].tolist() == [int(one) for one in row.correct]
        assert places[-1] == len(example["labels"]) - 1


def test_cut_steps_are_left_out_and_rows_without_any_are_counted(
    model: Path, tmp_path: Path
) -> None:
    whole = prepare(write_run(tmp_path / "run", model)).train
    size = whole.longest - 20
    cut = prepare(write_run(tmp_path / "cut", model, {"data__max_length": size})).train
    nothing = tiny.last_event(train(tmp_path / "nothing", model, {"data__max_length": 16}))
    firsts = [(row["labels"] != -100).nonzero()[0] for row in whole.data.with_format("torch")]

    assert cut.dropped == sum(int(first) >= size for first in firsts) > 0
    assert cut.count == whole.count - cut.dropped
    assert cut.longest_answer < whole.longest_answer == 3
    assert isinstance(nothing, Failed)


def test_batch_size_and_accumulation_do_not_change_the_loss(model: Path, tmp_path: Path) -> None:
    """Also where the batches have different numbers of steps."""
    rows = [row | {"steps": row["steps"][: n % 3 + 1]} for n, row in enumerate(SOLUTIONS)]
    rows = [row | {"correct": row["correct"][: len(row["steps"])]} for row in rows]
    curves = [
        tiny.metric_values(
            train(
                tmp_path / f"{size}",
                model,
                {
                    "optimisation__per_device_train_batch_size": size,
                    "optimisation__gradient_accumulation_steps": times,
                    "optimisation__train_sampling_strategy": "sequential",
                },
                rows,
            ),
            "loss",
        )
        for size, times in ((4, 1), (1, 4))
    ]

    assert curves[1] == pytest.approx(curves[0], rel=1e-4)


@pytest.mark.parametrize("changes", [{}, LORA | {"precision": "bf16"}], ids=["full", "lora"])
def test_resumed_run_equals_an_uninterrupted_one(
    changes: Changes, model: Path, tmp_path: Path
) -> None:
    whole = train(tmp_path / "whole", model, STEPS | SAVED | changes)
    again = resumed_runs.interrupt_run(whole, 7, tmp_path / "again")

    assert execute_run(again.root, StopHandler()) == 0
    assert resumed_runs.curve(again) == resumed_runs.curve(whole)
    assert resumed_runs.result(again) == resumed_runs.result(whole)
    assert resumed_runs.bits(again) == resumed_runs.bits(whole)


@pytest.mark.parametrize("adapter", [{}, LORA], ids=["full", "lora"])
def test_model_loads_without_the_studio(adapter: Changes, model: Path, tmp_path: Path) -> None:
    """Its loss on the validation rows is the run's."""
    run = train(tmp_path / "run", model, LEARNS | adapter)
    config = AutoConfig.from_pretrained(run.artifacts)
    place = model if adapter else run.artifacts
    loaded = AutoModelForTokenClassification.from_pretrained(place, config=config)
    if adapter:
        loaded = PeftModel.from_pretrained(loaded, run.artifacts)
    total = steps = 0.0
    validation = prepare(write_run(tmp_path / "other", model)).validation.data.with_format("torch")
    for row in validation:
        with torch.no_grad():
            logits = loaded.eval()(input_ids=row["input_ids"][None]).logits[0]
        total += float(cross_entropy(logits, row["labels"], reduction="sum"))
        steps += int((row["labels"] != -100).sum())

    assert config.id2label == {0: "wrong", 1: "right"}
    assert total / steps == pytest.approx(tiny.metric_values(run, "eval_loss")[-1], rel=1e-4)


def test_last_step_only_learns_from_nothing_else(model: Path, tmp_path: Path) -> None:
    """Changed verdicts on earlier steps change nothing."""
    changed = [row | {"correct": [True, True, row["correct"][-1]]} for row in SOLUTIONS]
    curves = [
        tiny.metric_values(
            train(tmp_path / str(place), model, {"checking__last_step_only": True}, rows), "loss"
        )
        for place, rows in enumerate((SOLUTIONS, changed))
    ]

    assert curves[0] == curves[1]


@pytest.mark.parametrize(
    ("labels", "kept"),
    [([1, -100, 0, -100], [-100, -100, 0, -100]), ([-100, 1, -100, -100], [-100, 1, -100, -100])],
)
def test_last_step_is_kept(labels: list[int], kept: list[int]) -> None:
    assert keep_last(torch.tensor([labels])).tolist() == [kept]


def scores_for(given: list[list[int]]) -> Tensor:
    return torch.nn.functional.one_hot(torch.tensor(given), 2).float()


@pytest.mark.parametrize(
    ("labels", "given", "accuracy", "f1", "first"),
    [
        ([[-100, 1, 0, 1]], [[0, 1, 0, 1]], 1.0, 1.0, 1.0),
        ([[-100, 1, 0, 0]], [[0, 1, 1, 0]], 2 / 3, 2 / 3, 0.0),
        ([[1, 1, -100, 1]], [[1, 1, 0, 0]], 2 / 3, 0.0, 0.0),
        ([[1, 1, 1, 1]], [[1, 1, 1, 1]], 1.0, 1.0, 1.0),
        ([[0, 1, 1, 1], [1, 1, 0, 0]], [[0, 0, 1, 1], [1, 1, 1, 0]], 6 / 8, 2 / 3, 0.5),
    ],
)
def test_found_errors_are_counted(
    labels: list[list[int]], given: list[list[int]], accuracy: float, f1: float, first: float
) -> None:
    counted = StepAccumulator(torch.device("cpu"))
    counted.add_steps(
        torch.tensor(1.0), scores_for(given), torch.tensor(labels), torch.tensor(len(labels) * 4)
    )
    found = counted.read()

    assert found["step_accuracy"] == pytest.approx(accuracy)
    assert found["wrong_step_f1"] == pytest.approx(f1)
    assert found["first_error_share"] == pytest.approx(first)


@pytest.mark.parametrize("verdict", [True, False])
def test_equal_verdicts_are_refused(verdict: bool, model: Path, tmp_path: Path) -> None:  # noqa: FBT001 -- a parameter
    rows = [row | {"correct": [verdict] * 3} for row in SOLUTIONS]
    failed = tiny.last_event(train(tmp_path / "run", model, {}, rows))

    assert isinstance(failed, Failed)
    assert failed.message == f"All steps are {'right' if verdict else 'wrong'}."


def test_rows_without_steps_are_refused(model: Path, tmp_path: Path) -> None:
    failed = tiny.last_event(train(tmp_path / "run", model, {}, tiny.rows()))

    assert isinstance(failed, Failed)
    assert (failed.code, "Steps are missing" in failed.message) == ("bad_row", True)
