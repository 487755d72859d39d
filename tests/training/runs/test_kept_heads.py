"""A base model that gives the labels or numbers of the data continues from its own head."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig

from studio.protocols.events import Finished, Started
from studio.protocols.run_dir import RunDir
from tests.training import tiny
from tests.training.runs import test_classification as labels
from tests.training.runs import test_regression as numbers
from tests.training.runs.test_encoders import STEPS_TO_LEARN, write_encoder
from tests.training.tiny import Changes

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::FutureWarning")]

BRIEF: Changes = {"optimisation__max_steps": 1, "optimisation__learning_rate": 1e-6}
WITHOUT_LARGE = [row for row in labels.TEXTS if row["messages"][1]["content"] != "large"]


@pytest.fixture(params=["llama", "bert"])
def classifier(request: pytest.FixtureRequest, model: Path, tmp_path: Path) -> RunDir:
    base = model if request.param == "llama" else write_encoder(tmp_path / "base", "bert")
    return labels.train(tmp_path / "first", base, STEPS_TO_LEARN)


def head_of(run: RunDir) -> str:
    (started,) = tiny.events_of(run, Started)
    return str(started.resolved["head"])


@pytest.mark.parametrize("rows", [labels.TEXTS, WITHOUT_LARGE], ids=["same", "fewer"])
def test_classifier_of_these_labels_goes_on(
    rows: list[tiny.Row], classifier: RunDir, tmp_path: Path
) -> None:
    run = labels.train(tmp_path / "again", classifier.artifacts, BRIEF, rows)

    assert isinstance(tiny.last_event(run), Finished), tiny.last_event(run)
    assert (head_of(classifier), head_of(run)) == ("new", "kept from the base model")
    assert tiny.metric_values(run, "eval_accuracy")[0] > 0.7
    config = AutoConfig.from_pretrained(run.artifacts)
    assert config.id2label == dict(enumerate(labels.NAMES))


def test_classifier_of_other_labels_gets_a_new_head(classifier: RunDir, tmp_path: Path) -> None:
    rows = labels.TEXTS + [
        {"messages": [row["messages"][0], {"role": "assistant", "content": "none"}]}
        for row in labels.TEXTS[:4]
    ]
    run = labels.train(tmp_path / "again", classifier.artifacts, BRIEF, rows)

    assert isinstance(tiny.last_event(run), Finished), tiny.last_event(run)
    assert head_of(run) == "new"
    config = AutoConfig.from_pretrained(run.artifacts)
    assert config.num_labels == len(labels.NAMES) + 1


def test_several_labels_need_a_new_head(classifier: RunDir, tmp_path: Path) -> None:
    run = labels.train(tmp_path / "again", classifier.artifacts, BRIEF, labels.SETS)

    assert head_of(run) == "new"


def test_kept_head_learns_at_the_rate_of_the_rest(model: Path, tmp_path: Path) -> None:
    first = labels.train(tmp_path / "first", model, BRIEF)
    rates = {}
    for base in (model, first.artifacts):
        trainer = labels.make_trainer(labels.write_run(tmp_path / base.name, base))
        groups = trainer.create_optimizer().param_groups
        rates[base] = {group["lr"] for group in groups}

    assert len(rates[model]) == 2
    assert len(rates[first.artifacts]) == 1


def test_numbers_go_on_in_their_scale(model: Path, tmp_path: Path) -> None:
    first = numbers.train(tmp_path / "first", model, numbers.LEARNS)
    trainer = numbers.make_trainer(
        numbers.write_run(tmp_path / "again", first.artifacts, rows=numbers.TEXTS[:40])
    )
    config = AutoConfig.from_pretrained(first.artifacts)

    assert trainer.model.config.target_means == config.target_means
    kept = load_file(first.artifacts / "model.safetensors")["score.weight"]
    assert torch.equal(trainer.model.score.weight.float(), kept.float())
