"""Classification: real runs on texts with labels, from recipe to artifacts."""

from pathlib import Path

import pytest
import torch
from peft import PeftModel
from transformers import AutoConfig, AutoModelForSequenceClassification

from studio.methods.classify import METHOD, ClassifyRecipe
from studio.methods.classify.counting import (
    LabelAccumulator,
    LabelCounts,
    LabelSetAccumulator,
    balanced_weights,
    positive_weights,
)
from studio.methods.classify.trainer import LabelTrainer, build, choose_head, tokenise
from studio.protocols.events import Failed, Finished, Sampled, Started
from studio.protocols.inference_service import GenerationRequest
from studio.protocols.label_reports import LABEL_REPORTS
from studio.protocols.report_files import of_model
from studio.protocols.run_dir import RunDir
from studio.protocols.tasks import TaskDir
from studio.runner.execution import execute_run
from studio.runner.inference.model_cache import ModelCache
from studio.runner.inference.reading import give_scores
from studio.runner.tasks.memory_dry_run import measure
from studio.runner.training_run import load_recipe
from studio.training.job import TrainingJob
from studio.training.stop_handler import StopHandler
from tests.training import tiny
from tests.training.checkpoints import resumed_runs
from tests.training.checkpoints.resumed_runs import SAVED, STEPS
from tests.training.tiny import LORA, Changes, Row

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::FutureWarning")]

NAMES = ("large", "middle", "small")


def labelled(one: int, two: int) -> Row:
    """Return a text whose last character tells its label."""
    mark, label = (("!", NAMES[2]), ("?", NAMES[1]), ("0", NAMES[0]))[one // 2]
    content = f"What is {one} plus {two}{mark}"
    return {
        "messages": [
            {"role": "user", "content": content},
            {"role": "assistant", "content": label},
        ]
    }


TEXTS = [labelled(one, two) for one in range(6) for two in range(8)]
LEARNS: Changes = {
    "optimisation__max_steps": 60,
    "labels__head_lr_ratio": 3.0,
    "optimisation__per_device_train_batch_size": 8,
    "optimisation__learning_rate": 0.003,
}


runs = tiny.Runs(TEXTS, method="classify", samples__max_new_tokens=1)
write_run, train = runs.write, runs.train


def make_trainer(run: RunDir) -> LabelTrainer:
    recipe = load_recipe(run)
    assert isinstance(recipe, ClassifyRecipe)
    job = TrainingJob.prepare(
        recipe,
        run,
        lambda _phase: None,
        tokenise=tokenise,
        choose_head=choose_head,
        kinds=METHOD.trainable_kinds,
    )
    return build(recipe, job)


@pytest.mark.parametrize(
    "changes",
    [{}, LORA, LORA | {"labels__class_weights": "balanced"}],
    ids=["full", "lora", "balanced"],
)
def test_model_learns_the_labels(changes: Changes, model: Path, tmp_path: Path) -> None:
    run = train(tmp_path / "run", model, LEARNS | changes)

    assert isinstance(tiny.last_event(run), Finished)
    scores = tiny.metric_values(run, "eval_macro_f1")
    assert scores[0] < 0.5
    assert max(scores) > 0.8
    assert 0 < tiny.metric_values(run, "eval_calibration_error")[-1] < 1
    assert tiny.events_of(run, Sampled) == []


@pytest.mark.parametrize("precision", ["bf16", "fp16", "bf16_pure"])
def test_scores_are_computed_in_float32(precision: str, model: Path, tmp_path: Path) -> None:
    run = train(tmp_path / "run", model, LEARNS | {"precision": precision})

    assert isinstance(tiny.last_event(run), Finished)
    (started,) = tiny.events_of(run, Started)
    assert started.resolved["audit"]["formats"]["Float32Linear"] == "float32"


def test_batch_size_and_accumulation_do_not_change_the_loss(model: Path, tmp_path: Path) -> None:
    curves = [
        tiny.metric_values(
            train(
                tmp_path / f"{size}",
                model,
                {
                    "labels__class_weights": "balanced",
                    "optimisation__per_device_train_batch_size": size,
                    "optimisation__gradient_accumulation_steps": times,
                    "optimisation__train_sampling_strategy": "sequential",
                },
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
    run = train(tmp_path / "run", model, LEARNS | adapter)
    config = AutoConfig.from_pretrained(run.artifacts)
    place = model if adapter else run.artifacts
    loaded = AutoModelForSequenceClassification.from_pretrained(place, config=config)
    if adapter:
        loaded = PeftModel.from_pretrained(loaded, run.artifacts)
    rows = make_trainer(write_run(tmp_path / "other", model)).eval_dataset
    right = 0
    for row in rows:
        with torch.no_grad():
            logits = loaded.eval()(input_ids=row["input_ids"][None]).logits
        right += int(logits.argmax()) == int(row["label"])

    assert config.id2label == dict(enumerate(NAMES))
    assert config.label2id == {name: number for number, name in enumerate(NAMES)}
    assert right / len(rows) == pytest.approx(tiny.metric_values(run, "eval_accuracy")[-1])


def test_texts_are_read_as_prompts(model: Path, tmp_path: Path) -> None:
    """As plain transformers renders them, so that users of the model need nothing else."""
    rows = make_trainer(write_run(tmp_path / "run", model)).train_dataset
    rendered = {
        tuple(
            tiny.tokenizer().apply_chat_template(
                row["messages"][:1], add_generation_prompt=True, return_dict=True
            )["input_ids"]
        )
        for row in TEXTS
    }

    assert {tuple(row["input_ids"].tolist()) for row in rows} <= rendered


def test_inference_service_gives_probabilities(model: Path, tmp_path: Path) -> None:
    run = train(tmp_path / "run", model, LEARNS)
    trainer = make_trainer(write_run(tmp_path / "other", model))
    request = GenerationRequest(
        model=str(run.artifacts), ids=[], stops=[], gives_scores=True, adapter=""
    )
    right = 0
    with ModelCache().model_for(request) as (loaded, _tokenizer):
        for row in trainer.eval_dataset:
            asked = request.model_copy(update={"ids": row["input_ids"].tolist()})
            scores = give_scores(asked, loaded).scores
            assert sum(scores.values()) == pytest.approx(1, abs=1e-5)
            right += max(scores, key=lambda name: scores[name]) == NAMES[int(row["label"])]
    accuracy = right / len(trainer.eval_dataset)
    assert accuracy == pytest.approx(tiny.metric_values(run, "eval_accuracy")[-1])


@pytest.mark.parametrize(
    ("rows", "changes", "message"),
    [
        ([{"text": "A text."}] * 8, {}, "has no label"),
        ([labelled(0, two) for two in range(8)], {}, 'have the label "small"'),
        (tiny.rows(), {"data__max_length": 64}, "so these are not labels"),
        (TEXTS, {"data__packing": True}, "cannot be packed"),
    ],
)
def test_what_has_no_labels_is_refused(
    rows: list[Row], changes: Changes, message: str, model: Path, tmp_path: Path
) -> None:
    failed = tiny.last_event(train(tmp_path / "run", model, changes, rows))

    assert isinstance(failed, Failed)
    assert message in failed.message


def test_dry_run_reads_one_text_per_row(model: Path, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", model, {"labels__class_weights": "balanced"})
    folder = TaskDir(tmp_path / "task")
    folder.files.mkdir(parents=True)
    params = {"recipe": load_recipe(run).model_dump(mode="json"), "job": run.job.read_text()}
    found = measure(folder, params, lambda _phase, _share: None)

    assert found["train_rows"] == len(make_trainer(run).train_dataset)
    assert found["at_peak"]["activations"] > 0


def test_balanced_weights_let_each_label_count_equally() -> None:
    weights = balanced_weights({0: 6, 2: 2}, 3)

    assert weights[0] * 6 == weights[2] * 2
    assert (weights[0] * 6 + weights[2] * 2) / 8 == 1
    assert weights[1] == 1.0


def test_metrics_follow_from_the_scores() -> None:
    torch.manual_seed(0)
    scores, labels = torch.randn(50, 4), torch.randint(3, (50,))
    counted = LabelAccumulator(torch.device("cpu"), 4)
    for part in range(0, 50, 20):
        rows = slice(part, part + 20)
        count = len(labels[rows])
        counted.add_texts(torch.ones(count), scores[rows], labels[rows], torch.tensor(count))
    sums, given = counted.read(), scores.argmax(dim=-1)

    def f1(label: int) -> float:
        right = int(((given == label) & (labels == label)).sum())
        precision = right / max(int((given == label).sum()), 1)
        recall = right / max(int((labels == label).sum()), 1)
        return 2 * precision * recall / max(precision + recall, 1e-9)

    assert sums["accuracy"] == pytest.approx(float((given == labels).float().mean()))
    assert sums["macro_f1"] == pytest.approx(sum(map(f1, range(4))) / 4)
    confidence = scores.softmax(dim=-1).amax(dim=-1)
    gaps = [
        abs(float((confidence - (given == labels).float())[(confidence * 15).long() == part].sum()))
        for part in range(15)
    ]
    assert sums["calibration_error"] == pytest.approx(sum(gaps) / 50, abs=1e-6)
    assert counted.read()["accuracy"] == 0


def test_labels_that_do_not_occur_do_not_count() -> None:
    right = torch.tensor([2.0, 2, 0])

    assert LabelCounts(right, right, right).macro_f1 == 1.0


def test_report_says_how_well_each_label_is_given(model: Path, tmp_path: Path) -> None:
    run = train(tmp_path / "run", model, LEARNS)

    reports = LABEL_REPORTS.read(run)
    assert [one.macro_f1 for one in reports] == tiny.metric_values(run, "eval_macro_f1")
    last = of_model(reports, keeps_best=False)
    assert last is not None
    assert [one.label for one in last.labels] == list(NAMES)
    assert last.texts == sum(one.support for one in last.labels)
    assert last.texts == sum(one.count for one in last.confusions)
    right = sum(one.count for one in last.confusions if one.true == one.given)
    assert right / last.texts == tiny.metric_values(run, "eval_accuracy")[-1]
    for score in last.labels:
        given = sum(one.count for one in last.confusions if one.given == score.label)
        assert score.given == given


def several(one: int, two: int) -> Row:
    """Return a text whose marks tell its labels: none, one or both."""
    labels = [name for name, number in (("loud", 1), ("open", 2)) if one & number]
    content = f"What is {one} plus {two}{'!' if one & 1 else ''}{'?' if one & 2 else '.'}"
    turns = [
        {"role": "user", "content": content},
        {"role": "assistant", "content": ", ".join(labels) or "none"},
    ]
    return {"messages": turns, "labels": labels}


SETS = [several(one, two) for one in range(8) for two in range(6)]


@pytest.mark.parametrize(
    "changes",
    [{}, LORA, LORA | {"labels__class_weights": "balanced", "precision": "bf16"}],
    ids=["full", "lora", "balanced"],
)
def test_model_learns_several_labels_per_text(
    changes: Changes, model: Path, tmp_path: Path
) -> None:
    run = train(tmp_path / "run", model, LEARNS | changes | {"labels__threshold": 0.4}, SETS)

    assert isinstance(tiny.last_event(run), Finished)
    assert max(tiny.metric_values(run, "eval_accuracy")) > 0.6
    for key in ("eval_macro_f1", "eval_micro_f1"):
        assert max(tiny.metric_values(run, key)) > 0.8
    config = AutoConfig.from_pretrained(run.artifacts)
    assert (config.problem_type, config.label_threshold) == ("multi_label_classification", 0.4)
    report = LABEL_REPORTS.read(run)[-1]
    assert (report.threshold, report.confusions) == (0.4, [])


def test_inference_service_gives_several_labels(model: Path, tmp_path: Path) -> None:
    run = train(tmp_path / "run", model, LEARNS, SETS)
    rows = make_trainer(write_run(tmp_path / "other", model, rows=SETS)).eval_dataset
    request = GenerationRequest(
        model=str(run.artifacts), ids=[], stops=[], gives_scores=True, adapter=""
    )
    right = 0
    with ModelCache().model_for(request) as (loaded, _tokenizer):
        for row in rows:
            end = give_scores(request.model_copy(update={"ids": row["input_ids"].tolist()}), loaded)
            assert end.labels == [name for name, share in end.scores.items() if share >= 0.5]
            right += [float(name in end.labels) for name in end.scores] == row["label"].tolist()
    assert right / len(rows) == pytest.approx(tiny.metric_values(run, "eval_accuracy")[-1])


def test_resumed_run_of_several_labels_equals_an_uninterrupted_one(
    model: Path, tmp_path: Path
) -> None:
    whole = train(tmp_path / "whole", model, STEPS | SAVED, SETS)
    again = resumed_runs.interrupt_run(whole, 7, tmp_path / "again")

    assert execute_run(again.root, StopHandler()) == 0
    assert resumed_runs.curve(again) == resumed_runs.curve(whole)
    assert resumed_runs.bits(again) == resumed_runs.bits(whole)
    assert LABEL_REPORTS.read(again) == LABEL_REPORTS.read(whole)


def test_metrics_of_several_labels_follow_from_the_scores() -> None:
    torch.manual_seed(0)
    scores, labels = torch.randn(40, 3), (torch.rand(40, 3) > 0.6).float()
    counted = LabelSetAccumulator(torch.device("cpu"), 3, 0.6)
    for part in (slice(0, 25), slice(25, 40)):
        count = len(labels[part])
        counted.add_texts(torch.ones(count), scores[part], labels[part], torch.tensor(count))
    sums, given = counted.read(), scores.sigmoid() >= 0.6

    right, true = (given & (labels > 0)).sum(dim=0), labels.sum(dim=0)
    f1 = 2 * right / (given.sum(dim=0) + true)
    assert sums["accuracy"] == pytest.approx(float((given == (labels > 0)).all(1).float().mean()))
    assert sums["macro_f1"] == pytest.approx(float(f1.mean()))
    micro = 2 * float(right.sum()) / float(given.sum() + true.sum())
    assert sums["micro_f1"] == pytest.approx(micro)


def test_positive_weights_let_texts_with_and_without_a_label_count_equally() -> None:
    assert positive_weights({0: 2, 2: 8}, 3, 8) == [3.0, 1.0, 1.0]
