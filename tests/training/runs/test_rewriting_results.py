"""What becomes of a run of an encoder-decoder model: exports, answers, and its measured memory."""

import math
import shutil
from pathlib import Path
from typing import Any

import pytest
from peft import PeftModel
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, GenerationConfig

from studio.methods.seq2seq.answers import chrf, judge
from studio.protocols.events import Failed, Finished, Sampled
from studio.protocols.inference_service import GenerationRequest
from studio.protocols.run_dir import RunDir
from studio.protocols.tasks import TaskDir
from studio.runner.inference.generation import token_budget
from studio.runner.inference.model_cache import ModelCache
from studio.runner.tasks.memory_dry_run import measure
from studio.runner.training_run import load_recipe
from tests.support import generated_answers
from tests.training import tiny
from tests.training.export.test_export import exported
from tests.training.runs.test_sequence_to_sequence import (
    LEARNS,
    make_trainer,
    models,
    pair,
    train,
    write_run,
)
from tests.training.tiny import LORA, Changes

__all__ = ["models"]

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::FutureWarning")]

PROMPT = "3 and 5"


@pytest.fixture(scope="module")
def full(models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    return train(tmp_path_factory.mktemp("full") / "run", models["bart"], LEARNS)


@pytest.fixture(scope="module")
def lora(models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    return train(tmp_path_factory.mktemp("lora") / "run", models["t5"], LEARNS | LORA)


def written(model: object, reader: object) -> str:
    """Return what a model of plain transformers writes."""
    inputs = reader(PROMPT, return_tensors="pt")  # type: ignore[operator] # upstream is untyped
    ids = model.generate(  # type: ignore[attr-defined] # the same
        input_ids=inputs["input_ids"], max_new_tokens=8, do_sample=False
    )
    text: str = reader.decode(ids[0], skip_special_tokens=True)  # type: ignore[attr-defined] # the same
    return text.strip()


def test_full_export_is_as_good_as_the_run(full: RunDir) -> None:
    folder, told = exported(full, "float32", "full")

    assert told["perplexity_after"] == told["perplexity_before"]
    loss = tiny.metric_values(full, "eval_loss")[-1]
    assert math.log(told["perplexity_before"]) == pytest.approx(loss, rel=1e-4)
    AutoModelForSeq2SeqLM.from_pretrained(folder.files)
    assert "AutoModelForSeq2SeqLM" in (folder.files / "README.md").read_text(encoding="utf-8")


def test_merged_adapter_writes_what_the_adapter_writes(
    lora: RunDir, models: dict[str, Path]
) -> None:
    folder, told = exported(lora, "float32", "merged")
    reader = AutoTokenizer.from_pretrained(folder.files)
    beside = PeftModel.from_pretrained(
        AutoModelForSeq2SeqLM.from_pretrained(models["t5"]), lora.artifacts
    )
    merged = AutoModelForSeq2SeqLM.from_pretrained(folder.files)

    assert told["perplexity_after"] == pytest.approx(told["perplexity_before"], rel=1e-4)
    assert written(merged, reader) == written(beside, reader)


@pytest.mark.parametrize("kind", ["full", "lora"])
def test_inference_service_writes_the_same(
    kind: str, models: dict[str, Path], request: pytest.FixtureRequest
) -> None:
    run: RunDir = request.getfixturevalue(kind)
    reader = AutoTokenizer.from_pretrained(run.artifacts)
    asked = GenerationRequest(
        model=str(models["t5"] if kind == "lora" else run.artifacts),
        adapter=str(run.artifacts) if kind == "lora" else "",
        ids=reader(PROMPT)["input_ids"],
        stops=[reader.eos_token_id],
        most=8,
        temperature=0.0,
    )
    with ModelCache().model_for(asked) as (model, tokenizer):
        found = generated_answers.answer(asked, model, tokenizer)
        plain = written(model, tokenizer)
        assert token_budget(asked, model.config) == asked.most

    assert found.text.strip() == plain
    assert 0 < found.end.tokens <= 8


BEAMS: Changes = {"rewriting__num_beams": 4, "rewriting__length_penalty": 2.0}


@pytest.fixture(scope="module")
def searched(models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """Train too little for the most probable tokens to make the most probable answer."""
    brief = {"optimisation__max_steps": 6, "optimisation__learning_rate": 0.003}
    answers = {"samples__prompts": 4, "samples__max_new_tokens": 8}
    changes = LEARNS | BEAMS | brief | answers
    return train(tmp_path_factory.mktemp("searched") / "run", models["bart"], changes)


def searched_for(model: Any, reader: Any, prompt: str, **changes: object) -> str:  # noqa: ANN401 -- upstream is untyped
    """Return what plain transformers writes with the saved model, as it was saved."""
    inputs = reader(prompt, return_tensors="pt")["input_ids"]
    ids = model.generate(input_ids=inputs, max_new_tokens=8, do_sample=False, **changes)
    text: str = reader.decode(ids[0], skip_special_tokens=True)
    return text.strip()


def test_beams_write_what_upstream_writes(searched: RunDir) -> None:
    """In a run and in Try it; the saved model searches in the same way by itself."""
    model = AutoModelForSeq2SeqLM.from_pretrained(searched.artifacts).eval()
    reader = AutoTokenizer.from_pretrained(searched.artifacts)
    after = [event for event in tiny.events_of(searched, Sampled) if event.stage == "after"]
    greedy = [searched_for(model, reader, event.prompt, num_beams=1) for event in after]

    assert (model.generation_config.num_beams, model.generation_config.length_penalty) == (4, 2.0)
    assert [event.answer for event in after] == [
        searched_for(model, reader, event.prompt, num_beams=4, length_penalty=2.0)
        for event in after
    ]
    assert [event.answer for event in after] == [
        searched_for(model, reader, event.prompt) for event in after
    ]
    assert [event.answer for event in after] != greedy
    for event in after:
        asked = GenerationRequest(
            model=str(searched.artifacts),
            ids=reader(event.prompt)["input_ids"],
            stops=[reader.eos_token_id],
            most=8,
            temperature=0.0,
            num_beams=4,
            length_penalty=2.0,
        )
        with ModelCache().model_for(asked) as (loaded, tokenizer):
            found = generated_answers.answer(asked, loaded, tokenizer)
        assert found.text.strip() == event.answer


def test_saved_model_searches_as_the_run_whatever_its_base_does(
    models: dict[str, Path], tmp_path: Path
) -> None:
    """BART's own config has several beams, which upstream would use again."""
    base = tmp_path / "base"
    shutil.copytree(models["bart"], base)
    config = GenerationConfig.from_pretrained(base)
    config.update(num_beams=4, length_penalty=2.0, early_stopping=True)
    config.save_pretrained(base)
    run = train(tmp_path / "run", base, {"optimisation__max_steps": 1})
    folder, _told = exported(run, "float32", "full")

    assert isinstance(tiny.last_event(run), Finished), tiny.last_event(run)
    saved = GenerationConfig.from_pretrained(folder.files)
    assert (saved.num_beams, saved.length_penalty, saved.early_stopping) == (1, None, None)


def test_adapter_is_saved_with_the_beams(models: dict[str, Path], tmp_path: Path) -> None:
    """Its card loads them: the base model's own config may have others."""
    changes = LORA | BEAMS | {"optimisation__max_steps": 1}
    run = train(tmp_path / "run", models["t5"], changes)
    folder, _told = exported(run, "float32", "adapter")

    saved = GenerationConfig.from_pretrained(folder.files)
    assert (saved.num_beams, saved.length_penalty) == (4, 2.0)
    card = (folder.files / "README.md").read_text(encoding="utf-8")
    assert "base.generation_config = GenerationConfig.from_pretrained(" in card


def test_dry_run_measures_prompts_and_answers(models: dict[str, Path], tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", models["t5"])
    folder = TaskDir(tmp_path / "task")
    folder.files.mkdir(parents=True)
    params = {"recipe": load_recipe(run).model_dump(mode="json"), "job": run.job.read_text()}
    found = measure(folder, params, lambda _phase, _share: None)

    trainer = make_trainer(run)
    assert found["train_rows"] == len(trainer.train_dataset)
    assert found["longest_example"] == max(len(row["input_ids"]) for row in trainer.train_dataset)
    assert found["longest_answer"] == max(len(row["labels"]) for row in trainer.train_dataset)
    weights = sum(p.numel() * p.element_size() for p in trainer.model.parameters())
    assert found["at_peak"]["weights"] == pytest.approx(weights, rel=0.01)
    assert found["at_peak"]["activations"] > 0


def test_answers_are_truncated_but_end(models: dict[str, Path], tmp_path: Path) -> None:
    rows = [pair(10**30, 10**size) for size in range(30, 50)]
    run = write_run(tmp_path / "run", models["t5"], {"data__max_length": 16}, rows)
    examples = make_trainer(run).train_dataset

    assert {len(row["labels"]) for row in examples} == {16}
    assert {len(row["input_ids"]) for row in examples} == {16}
    assert {int(row["labels"][-1]) for row in examples} == {tiny.tokenizer().eos_token_id}


def test_texts_beyond_the_learned_positions_are_refused(
    models: dict[str, Path], tmp_path: Path
) -> None:
    """And answers end there, however long they may get."""
    texts = [
        {"messages": [{"role": "user", "content": "go " * size}, *pair(1, 2)["messages"][1:]]}
        for size in range(100, 180)
    ]
    failed = tiny.last_event(train(tmp_path / "long", models["bart"], rows=texts))
    answers = {"samples__prompts": 1, "samples__max_new_tokens": 4000}
    done = train(tmp_path / "done", models["bart"], answers)

    assert isinstance(failed, Failed)
    assert "this model reads and writes at most 128" in failed.message
    assert isinstance(tiny.last_event(done), Finished)


@pytest.mark.parametrize(
    ("answer", "expected", "score"),
    [
        ("the cat", "the cat", 1.0),
        ("", "the cat", 0.0),
        ("xyz", "the cat", 0.0),
        ("the dog sat on the mat", "a cat sat on a mat", None),
    ],
)
def test_chrf_is_between_nothing_and_equal(answer: str, expected: str, score: float | None) -> None:
    found = chrf(answer, expected)

    assert 0 < found < 1 if score is None else found == score


def test_judged_answers_count_alike() -> None:
    found = judge([" yes", "no"], ["yes", "maybe"])

    assert found["eval_exact_share"] == 0.5
    assert found["eval_chrf_share"] == pytest.approx((1 + chrf("no", "maybe")) / 2)
