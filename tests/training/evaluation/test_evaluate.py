"""The evaluation task: a model answers rows, can be interrupted, and measures references."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from studio.evaluation import metrics, statistics
from studio.evaluation.metrics import EVALUATION_METRICS
from studio.methods.dpo import DPORecipe
from studio.protocols.evaluation import RESULTS_FILE, EvaluationJob, RowResult
from studio.protocols.inference_service import GenerationRequest
from studio.protocols.run_dir import RunDir
from studio.protocols.tasks import TaskDir
from studio.runner.tasks.evaluate import choose_rows, evaluate
from studio.runner.training_run import load_recipe
from tests.training import tiny
from tests.training.runs import test_preferences

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """Train an adapter that learns the sums well enough to change its answers."""
    root = tmp_path_factory.mktemp("evaluated")
    model = tiny.write_model(root / "model", tiny.llama())
    return tiny.train(root / "run", model, **tiny.LORA, optimisation__max_steps=30)


def job(run: RunDir, *, tuned: bool = True, **changes: Any) -> EvaluationJob:  # noqa: ANN401 -- fields
    model = str(run.root.parent / "model")
    fields = {
        "about": "run 1",
        "answer_set": 1,
        "model": GenerationRequest(
            model=model, adapter=str(run.artifacts) if tuned else "", ids=[], stops=[]
        ),
        "train": run.root / "train.jsonl",
        "validation": None,
        "validation_share": 0.2,
        "seed": 42,
        "with_bad": False,
        "rows": 64,
        "chat_template": "model",
        "has_chat_template": True,
        "has_expected": True,
        "max_length": 128,
        "max_new_tokens": 12,
    }
    return EvaluationJob.model_validate(fields | changes)


def answer(tmp_path: Path, asked: EvaluationJob) -> list[dict[str, Any]]:
    folder = TaskDir(tmp_path)
    folder.files.mkdir(exist_ok=True)
    result = evaluate(folder, asked.model_dump(mode="json"), lambda _phase, _share: None)
    rows: list[dict[str, Any]] = result["rows"]
    return rows


def test_rows_are_those_that_the_run_held_out(run: RunDir, tmp_path: Path) -> None:
    seed = tiny.recipe().optimisation.seed
    told = answer(tmp_path, job(run, seed=seed))
    held_out = run.events.read()[0]
    validated = next(
        event.resolved["validation_rows"] for event in held_out if event.kind == "started"
    )

    assert len(told) == validated
    assert [row["position"] for row in told] == list(range(len(told)))
    assert all(row["reference"] and row["prompt"].startswith("What is") for row in told)


def test_references_are_expected_as_a_fresh_process_computes_it(
    run: RunDir, tmp_path: Path
) -> None:
    """The loss of each reference equals that of its tokens alone, computed without our code."""
    base = str(run.root.parent / "model")
    told = answer(tmp_path, job(run, tuned=False))
    model = AutoModelForCausalLM.from_pretrained(base, dtype="float32").eval()
    tokenizer = AutoTokenizer.from_pretrained(base)

    for row in told[:3]:
        turns = [{"role": "user", "content": row["prompt"]}]
        prompt = tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
        ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
        whole = tokenizer(prompt + row["reference"] + "<|im_end|>", add_special_tokens=False)
        tokens = torch.tensor([whole["input_ids"]])
        with torch.no_grad():
            scores = model(tokens).logits.log_softmax(-1)[0, :-1]
        expected = -scores[range(len(scores)), tokens[0, 1:]][len(ids) - 1 :].sum().item()
        assert row["nll"] == pytest.approx(expected, abs=1e-3)
        assert row["nll_tokens"] == tokens.shape[1] - len(ids)


def test_answers_are_the_models_own(run: RunDir, tmp_path: Path) -> None:
    """Greedy answers equal upstream's generate on each prompt alone."""
    base = str(run.root.parent / "model")
    told = answer(tmp_path, job(run, tuned=False))
    model = AutoModelForCausalLM.from_pretrained(base, dtype="float32").eval()
    tokenizer = AutoTokenizer.from_pretrained(base)

    for row in told:
        turns = [{"role": "user", "content": row["prompt"]}]
        inputs = tokenizer.apply_chat_template(
            turns, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        written = model.generate(
            **inputs, max_new_tokens=12, do_sample=False, eos_token_id=tokenizer.eos_token_id
        )[0, inputs["input_ids"].shape[1] :]
        assert row["answer"] == tokenizer.decode(written, skip_special_tokens=True).strip()
        assert row["tokens"] == len(written)
        ended = written[-1].item() == tokenizer.eos_token_id
        assert row["reason"] == ("stop" if ended else "length")


def test_base_and_tuned_differ_and_repeats_do_not(run: RunDir, tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("base", "tuned", "again")]
    for folder in folders:
        folder.mkdir()
    base = answer(folders[0], job(run, tuned=False))
    tuned = answer(folders[1], job(run))

    assert answer(folders[2], job(run)) == tuned
    loss = [sum(row["nll"] for row in rows) for rows in (base, tuned)]
    assert loss[1] < loss[0] - 5
    assert {row["computed_in"] for row in tuned} == {"float32"}


def test_second_attempt_continues_after_the_last_complete_line(run: RunDir, tmp_path: Path) -> None:
    told = answer(tmp_path, job(run))
    path = tmp_path / "files" / RESULTS_FILE
    lines = path.read_text().splitlines(keepends=True)
    kept = [json.loads(line) for line in lines[:3]]
    marked = [{**row, "answer": "kept"} for row in kept]
    path.write_text("".join(json.dumps(row) + "\n" for row in marked) + lines[3][:40])

    again = answer(tmp_path, job(run))

    positions = {row["position"] for row in kept}
    assert {row["position"] for row in again if row["answer"] == "kept"} == positions
    assert [row for row in again if row["position"] not in positions] == [
        row for row in told if row["position"] not in positions
    ]


def test_rows_in_the_training_data_are_found(run: RunDir, tmp_path: Path) -> None:
    """Rows of the same file are found but for those that were held out, wherever they are."""
    train, seed = run.root / "train.jsonl", tiny.recipe().optimisation.seed
    asked = job(run, seed=seed, is_whole=True, trained_on=train)
    held_out = {row.number for row in choose_rows(job(run, seed=seed))}

    told = answer(tmp_path, asked)

    assert {row["number"] for row in told if row["overlap"] != "exact"} == held_out
    whole = asked.model_copy(update={"has_own_validation": True})
    (tmp_path / "again").mkdir()
    assert {row["overlap"] for row in answer(tmp_path / "again", whole)} == {"exact"}


def test_fewer_rows_are_chosen_always_the_same(run: RunDir) -> None:
    asked = job(run, rows=3, is_whole=True)
    first = [row.number for row in choose_rows(asked)]
    other = asked.model_copy(update={"seed": 7})

    assert first == [row.number for row in choose_rows(other)] == sorted(first)
    assert len(set(first)) == 3


@pytest.mark.parametrize(
    "row",
    [
        {"text": "One two three four five six seven eight nine ten."},
        {
            "messages": [{"role": "user", "content": "Go"}],
            "chosen": [{"role": "assistant", "content": "Gone well."}],
            "rejected": [{"role": "assistant", "content": "No."}],
        },
        {
            "messages": [
                {"role": "user", "content": "A?"},
                {"role": "assistant", "content": "Bee."},
                {"role": "user", "content": "C?"},
                {"role": "assistant", "content": "Dee."},
                {"role": "user", "content": "Not answered"},
            ]
        },
        {"messages": [*tiny.rows()[0]["messages"]], "label": True},
    ],
    ids=["text", "preference", "turns", "rated"],
)
def test_rows_of_each_kind_are_answered(run: RunDir, tmp_path: Path, row: dict[str, Any]) -> None:
    path = tiny.write_rows(tmp_path / "rows.jsonl", [row, row])

    told = answer(tmp_path, job(run, train=path, is_whole=True, with_bad=True))

    assert len(told) == 2
    assert told[0]["reference"] in {
        "seven eight nine ten.",
        "Gone well.",
        "Dee.",
        "0 plus 0 is 0.",
    } or ("text" in row and row["text"].endswith(told[0]["reference"]))
    assert told[0]["nll_tokens"] > 0
    # Only the reference counts, not what comes before it.
    assert told[0]["nll_tokens"] < 30
    assert told[0]["nll"] == pytest.approx(told[1]["nll"], rel=1e-4)


def test_full_model_and_more_tokens_than_fit_are_answered(run: RunDir, tmp_path: Path) -> None:
    asked = replace_model(job(run), adapter="")
    told = answer(tmp_path, asked.model_copy(update={"max_new_tokens": 1}))

    assert {row["tokens"] for row in told} == {1}


def replace_model(asked: EvaluationJob, **changes: str) -> EvaluationJob:
    assert asked.model is not None
    return asked.model_copy(update={"model": asked.model.model_copy(update=changes)})


def test_worse_answers_are_expected_as_better_ones_are(run: RunDir, tmp_path: Path) -> None:
    """The loss of a worse answer equals that of the same text as the better one."""
    pairs = [
        {
            "messages": [{"role": "user", "content": f"What is {one} plus 1?"}],
            "chosen": [{"role": "assistant", "content": f"It is {one + 1}."}],
            "rejected": [{"role": "assistant", "content": "No idea."}],
        }
        for one in range(4)
    ]
    swapped = [pair | {"chosen": pair["rejected"], "rejected": pair["chosen"]} for pair in pairs]
    told = []
    for name, rows in (("pairs", pairs), ("swapped", swapped)):
        folder = tmp_path / name
        folder.mkdir()
        told.append(
            answer(
                folder, job(run, train=tiny.write_rows(folder / "rows.jsonl", rows), is_whole=True)
            )
        )

    assert all(row["rejected_nll"] > 0 for row in told[0])
    for one, other in zip(*told, strict=True):
        assert one["nll"] == pytest.approx(other["rejected_nll"], rel=1e-5)
        assert one["rejected_nll"] == pytest.approx(other["nll"], rel=1e-5)


def test_rows_without_a_worse_answer_have_no_loss_of_it(run: RunDir, tmp_path: Path) -> None:
    assert {row["rejected_nll"] for row in answer(tmp_path, job(run))} == {None}


def test_preference_run_gains_the_margin_that_it_was_trained_for(tmp_path: Path) -> None:
    # The longer answers are the better ones: the base model finds all of them less likely.
    pairs = [
        row | {"chosen": row["rejected"], "rejected": row["chosen"]}
        for row in test_preferences.PAIRS
    ]
    model = tiny.write_model(tmp_path / "model", tiny.llama())
    learns = {"optimisation__max_steps": 30, "optimisation__learning_rate": 3e-3}
    trained = test_preferences.runs.train(tmp_path / "run", model, learns, pairs)
    told = []
    for name, changes in (("base", {"model": str(model)}), ("tuned", {})):
        (tmp_path / name).mkdir()
        asked = replace_model(
            job(trained, rows=1000), adapter="", **({"model": str(trained.artifacts)} | changes)
        )
        told.append(
            [RowResult.model_validate(row).to_row() for row in answer(tmp_path / name, asked)]
        )
    compared = statistics.compare(EVALUATION_METRICS["preference_margin"], *told)

    assert metrics.primary(told[1]).key == "preference_margin"
    assert compared is not None
    assert compared.is_clear
    # DPO's reward is beta times what the margin has gained: arXiv:2305.18290, equation 6.
    gained = tiny.metric_values(trained, "eval_reward_margin")[-1]
    recipe = load_recipe(trained)
    assert isinstance(recipe, DPORecipe)
    assert compared.difference == pytest.approx(gained / recipe.preference.beta, rel=1e-3)


def test_tasks_are_answered_though_nothing_is_learnt_of_them(run: RunDir, tmp_path: Path) -> None:
    """Their references are what graders may read; those without one have none."""
    turns = [row["messages"][0] for row in tiny.rows()[:3]]
    items: list[dict[str, Any]] = [{"reference_answer": "Zero."}, {"reference_answer": 1}, {}]
    rows = [{"messages": [turn], "item": one} for turn, one in zip(turns, items, strict=True)]
    path = tiny.write_rows(tmp_path / "tasks.jsonl", rows)
    asked = job(run, train=path, is_whole=True, trained_on=path, has_own_validation=True)

    told = answer(tmp_path, asked)
    assert [row["reference"] for row in told] == ["Zero.", "1", ""]
    assert [row["prompt"] for row in told] == [turn["content"] for turn in turns]
    assert all(row["answer"] and row["nll"] is None and row["overlap"] for row in told)
