"""The starter's fine-tune learns: measured on rows held out, before and after."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from studio import starter
from studio.methods import RECIPE_ADAPTER
from studio.protocols.events import Finished, Sampled
from studio.protocols.run_dir import JobSpec, RunDir
from studio.recipe import yaml
from studio.runner.execution import execute_run
from studio.training.data import tokenisation
from studio.training.data.chat_templates import ChatTemplate
from studio.training.data.rows import read_rows
from studio.training.stop_handler import StopHandler
from tests.training import tiny

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::FutureWarning")]

ASKED = 60
RECIPE = {
    "method": "sft",
    "base_model": "starter",
    "dataset": "starter",
    "precision": "fp32",
    "optimisation": {"learning_rate": 3e-3, "max_steps": 120, "per_device_train_batch_size": 32},
    "adapter": {"kind": "full"},
    "data": {"max_length": 256},
    "evaluation": {"eval_steps": 120, "per_device_eval_batch_size": 64},
    "samples": {"prompts": ASKED, "max_new_tokens": 24},
}
"""Half of what a Quick try does. Seeds 42, 1 and 2 ended at losses of 0.41, 0.41 and 0.46, with 33,
28 and 32 of the 60 answers right to the letter, and none before."""


@pytest.fixture(scope="module")
def model(starter_model: Path) -> Path:
    return starter_model


@pytest.fixture(scope="module")
def run(model: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    run = RunDir(tmp_path_factory.mktemp("learning"))
    starter.write_rows(run.root)
    recipe = RECIPE_ADAPTER.validate_python(RECIPE, strict=False)
    run.recipe.write_text(yaml.dump(recipe), encoding="utf-8")
    train, validation = (run.root / f"{split}.jsonl" for split in ("train", "validation"))
    spec = JobSpec(run_id=1, name="x", model=str(model), train=train, validation=validation)
    run.job.write_text(spec.model_dump_json(), encoding="utf-8")
    execute_run(run.root, StopHandler())
    assert isinstance(tiny.last_event(run), Finished), tiny.last_event(run)
    return run


def test_starter_validation_loss_decreases(run: RunDir, model: Path) -> None:
    reader = AutoTokenizer.from_pretrained(model)
    held_out = read_rows(run.root / "validation.jsonl")
    examples = tokenisation.tokenise(held_out, ChatTemplate(reader), reader, max_length=256)
    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)

    assert tiny.loss_of(base, examples, reader.pad_token_id) > 3
    assert tiny.metric_values(run, "eval_loss")[-1] < 0.8


def test_trained_starter_answers_held_out_questions(run: RunDir) -> None:
    assert right(run, "before") <= 2
    assert right(run, "after") >= ASKED / 4


def right(run: RunDir, stage: str) -> int:
    said = [answer for answer in tiny.events_of(run, Sampled) if answer.stage == stage]
    assert len(said) == ASKED
    return sum(answer.answer.strip() == answer.reference.strip() for answer in said)
