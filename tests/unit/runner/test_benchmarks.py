"""Benchmarks: what lm-eval is given, and how its results and its failures are read."""

import json
import math
import re
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyarrow import parquet
from pydantic import SecretStr

from studio.errors import InvalidError, UnavailableError
from studio.evaluation.benchmarks import ROW_METRICS, SUITES, RowTask
from studio.protocols.benchmarks import RowsSource, SuiteSource
from studio.runner.tasks.benchmarks import (
    benchmark,
    harness,
    harness_errors,
    harness_results,
    row_tasks,
)
from studio.runner.tasks.benchmarks.harness_model import HarnessModel
from studio.settings import Settings
from studio.training.data.chat_templates import ChatTemplate
from tests.training import tiny

pytestmark = pytest.mark.filterwarnings("ignore")

HUB = "https://hub.example.org"
NO_ROOM = (
    "Invalid configuration: requested max tokens to generate (1280) must be less than model's "
    "maximum sequence length (512)."
)
SILENT = lambda _phase, _share: None  # noqa: E731 -- reports nothing


@pytest.fixture(scope="module")
def template() -> ChatTemplate:
    return ChatTemplate(tiny.tokenizer())


def model(template: ChatTemplate | None) -> HarnessModel:
    return HarnessModel(
        arguments={"pretrained": "/m", "peft": "/a", "tokenizer": "/t", "dtype": "float32"},
        template=template,
        computed_in="float32",
    )


def conversation(*answers: str) -> dict[str, Any]:
    return {
        "messages": [
            turn
            for number, answer in enumerate(answers)
            for turn in (
                {"role": "user", "content": f"Question {number}?"},
                {"role": "assistant", "content": answer},
            )
        ]
    }


def write(
    folder: Path, template: ChatTemplate | None, *rows: Mapping[str, Any]
) -> tuple[RowTask, dict[str, Any], list[dict[str, str]]]:
    """Return what the model is to do, the task and its documents."""
    file = tiny.write_rows(folder / "rows.jsonl", rows)
    source = RowsSource(file=file, rows=8, max_new_tokens=16)
    kind = row_tasks.write(source, template, folder / "task")
    task = yaml.safe_load((folder / "task/studio_rows.yaml").read_text())
    documents = parquet.read_table(task["dataset_kwargs"]["data_files"]["test"]).to_pylist()
    return kind, task, documents


def test_conversations_are_asked_as_the_studio_asks_them(
    template: ChatTemplate, tmp_path: Path
) -> None:
    kind, task, documents = write(tmp_path, template, conversation("Yes.", " 2020-01-01 "))

    assert kind == "answers"
    assert documents == [
        {
            "prompt": "<|im_start|>user\nQuestion 0?<|im_end|>\n<|im_start|>assistant\nYes."
            "<|im_end|>\n<|im_start|>user\nQuestion 1?<|im_end|>\n<|im_start|>assistant\n",
            "target": "2020-01-01",
        }
    ]
    assert (task["doc_to_text"], task["doc_to_target"]) == ("prompt", "target")
    assert task["generation_kwargs"] == {
        "do_sample": False,
        "num_beams": 1,
        "length_penalty": None,
        "early_stopping": None,
        "until": [],
        "max_gen_toks": 16,
        "eos_token_id": template.stop_tokens,
    }


def test_tasks_are_compared_with_what_graders_read(template: ChatTemplate, tmp_path: Path) -> None:
    turn = {"role": "user", "content": "Question 0?"}
    rows = [{"messages": [turn], "item": item} for item in ({"reference_answer": 4}, {"level": 1})]
    kind, _task, documents = write(tmp_path, template, *rows)

    assert kind == "answers"
    assert documents == [{"prompt": template.render_prompt([turn]), "target": "4"}]


@pytest.mark.parametrize(
    ("row", "kind", "metric"),
    [
        (conversation("Yes."), "answers", "exact_match"),
        ({"text": "Some text."}, "texts", "bits_per_byte"),
    ],
)
def test_rows_decide_what_is_measured(
    template: ChatTemplate, tmp_path: Path, row: dict[str, Any], kind: RowTask, metric: str
) -> None:
    made, task, _documents = write(tmp_path, template, row)

    assert made == kind
    assert task["metric_list"] == [{"metric": metric}]
    assert ROW_METRICS[kind].name.startswith(f"{metric},")


def test_task_runs_no_code(template: ChatTemplate, tmp_path: Path) -> None:
    row = conversation("!function os.system")
    row["messages"][0]["content"] = "{{ 7 * 7 }}: !function utils.run"
    _kind, _task, documents = write(tmp_path, template, row)

    assert "!" not in (tmp_path / "task/studio_rows.yaml").read_text()
    assert "{{ 7 * 7 }}: !function utils.run" in documents[0]["prompt"]


def test_rows_without_answers_are_left_out(template: ChatTemplate, tmp_path: Path) -> None:
    rows = [conversation("Yes."), conversation(" "), conversation("No.")]
    _kind, _task, documents = write(tmp_path, template, *rows)

    assert [one["target"] for one in documents] == ["Yes.", "No."]


def test_dataset_without_answers_is_refused(template: ChatTemplate, tmp_path: Path) -> None:
    with pytest.raises(InvalidError, match="No row of this dataset has an answer or a text"):
        write(tmp_path, template, conversation(""))


def test_long_answers_are_refused(template: ChatTemplate, tmp_path: Path) -> None:
    with pytest.raises(InvalidError, match="too long for a model to write them word for word"):
        write(tmp_path, template, conversation("It is an answer of more than five words."))


def test_conversations_need_a_chat_template(tmp_path: Path) -> None:
    with pytest.raises(InvalidError, match="no chat template"):
        write(tmp_path, None, conversation("Yes."))


def test_prompts_of_rows_get_no_token_more(template: ChatTemplate) -> None:
    config = benchmark.rows_config(model(template), Path("/task"))

    assert config["model_args"] == {
        "pretrained": "/m",
        "peft": "/a",
        "tokenizer": "/t",
        "dtype": "float32",
        "add_bos_token": False,
    }
    assert (config["tasks"], config["include_path"]) == (["studio_rows"], "/task")
    assert "apply_chat_template" not in config


@pytest.mark.parametrize(("suite", "limit"), [("gsm8k", 100), ("mmlu", 2)])
def test_suites_are_limited_and_greedy(template: ChatTemplate, suite: str, limit: int) -> None:
    config = benchmark.suite_config(SuiteSource(suite=suite, rows=100), model(template))

    assert (config["tasks"], config["limit"]) == ([suite], limit)
    assert config["gen_kwargs"]["num_beams"] == 1
    assert config["apply_chat_template"] is True
    assert "add_bos_token" not in config["model_args"]


def test_suites_of_a_model_without_chat_template_get_plain_text() -> None:
    config = benchmark.suite_config(SuiteSource(suite="gsm8k", rows=8), model(None))

    assert config["apply_chat_template"] is False


def test_rows_are_measured_offline_and_suites_with_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STUDIO_HUB_TOKEN", "hf_secret")
    settings = Settings(home=tmp_path, hub_endpoint=f"{HUB}/", hub_token=SecretStr("hf_secret"))
    offline, online = (harness.environment(tmp_path, one) for one in (None, settings))

    assert {offline[name] for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")} == {"1"}
    assert "hf_secret" not in offline.values()
    assert (online["HF_ENDPOINT"], online["HF_TOKEN"]) == (HUB, "hf_secret")
    assert "STUDIO_HUB_TOKEN" not in online
    assert Path(online["HF_HUB_CACHE"]).is_relative_to(settings.cache)
    assert Path(online["NLTK_DATA"]).is_dir()


@pytest.mark.parametrize(
    ("output", "code", "message"),
    [
        (
            "ModuleNotFoundError: No module named 'lm_eval'",
            "unavailable",
            "lm-eval is not installed.",
        ),
        (
            "ModuleNotFoundError: No module named 'langdetect'",
            "unavailable",
            "This suite needs the package langdetect, which is not installed.",
        ),
        (
            "ValueError: Tasks not found: mmlu",
            "not_found",
            "The installed lm-eval has no task mmlu.",
        ),
        (
            "datasets.exceptions.DatasetNotFoundError: Dataset 'a/b' is a gated dataset.",
            "gated_model",
            "The data of this suite is gated: you must accept its terms first.",
        ),
        (
            "OfflineModeIsEnabled: Cannot reach https://huggingface.co: offline mode is enabled.",
            "unavailable",
            "This studio is in offline mode.",
        ),
        (
            "httpx.ConnectError: [Errno -2] Name or service not known",
            "unavailable",
            f"The data of this suite cannot be downloaded: {HUB} cannot be reached.",
        ),
        (
            f"AssertionError: {NO_ROOM}",
            "invalid",
            "Answers of up to 1,280 tokens do not fit: this model reads 512 tokens at most.",
        ),
        (
            "torch.OutOfMemoryError: CUDA out of memory.",
            "unavailable",
            "The model and its answers do not fit in memory.",
        ),
        (
            "OSError: [Errno 28] No space left on device",
            "unavailable",
            "The disk is full.",
        ),
        (
            "ValueError: Something new.\n\n",
            "unavailable",
            "lm-eval failed: ValueError: Something new.",
        ),
        ("", "unavailable", "lm-eval failed without a message."),
    ],
)
def test_failures_are_put_into_words(output: str, code: str, message: str) -> None:
    error = harness_errors.explain(
        f"Traceback (most recent call last):\n{output}" if output else "", HUB
    )

    assert (error.code, error.message) == (code, message)
    assert error.hint


def test_progress_is_read_and_the_rest_is_logged(capsys: pytest.CaptureFixture[str]) -> None:
    script = (
        "import sys; out = sys.stderr; out.write('Loading\\n');"
        "[out.write(f'\\rRunning generate_until requests: {p:3}%|#| 1/2') for p in (0, 50, 100)];"
        "out.write('\\n  5%|#| 1/20\\nDone'); sys.exit(0)"
    )
    told: list[tuple[str, float | None]] = []
    harness.follow([sys.executable, "-c", script], {}, lambda *one: told.append(one))

    assert told == [("answering", 0.0), ("answering", 0.5), ("answering", 1.0)]
    assert capsys.readouterr().out == "Loading\nDone\n"


def test_killed_process_is_explained() -> None:
    script = "import os; os.kill(os.getpid(), 9)"
    with pytest.raises(UnavailableError, match="most likely because memory ran out"):
        harness.follow([sys.executable, "-c", script], {}, SILENT)


def results(folder: Path, samples: Mapping[str, list[dict[str, Any]]], **figures: Any) -> Path:  # noqa: ANN401 -- of lm-eval
    """Write what lm-eval writes."""
    made = folder / "output/__m"
    made.mkdir(parents=True)
    told = {
        "results": {},
        "versions": {"mmlu": 2, "mmlu_law": 1.0},
        "n-shot": {"mmlu_law": 0},
        "lm_eval_version": "0.4.13",
        "git_hash": None,
    }
    (made / "results_2026-11-26T10-00-00.1.json").write_text(json.dumps(told | figures))
    for task, rows in samples.items():
        file = made / f"samples_{task}_2026-11-26T10-00-00.1.jsonl"
        file.write_text("".join(json.dumps({"filter": "none", **row}) + "\n" for row in rows))
    return folder / "output"


def test_rows_of_all_parts_of_a_suite_are_read(tmp_path: Path) -> None:
    samples = {
        task: [{"doc_id": number, "target": "A", "acc": right} for number, right in enumerate(one)]
        for task, one in {"mmlu_law": (1.0, 0.0), "mmlu_art_history": (1.0,)}.items()
    }
    groups = {"mmlu_stem": {}, "mmlu": {"acc,none": 2 / 3, "acc_stderr,none": 0.25}}
    folder = results(tmp_path, samples, groups=groups)

    told = harness_results.read(folder, "mmlu", SUITES["mmlu"].metrics, model(None))

    scores = told.scores["accuracy"]
    assert scores.stderr == 0.25
    assert scores.rows == {
        "mmlu_art_history 0": (1.0, 1.0),
        "mmlu_law 0": (1.0, 1.0),
        "mmlu_law 1": (0.0, 1.0),
    }
    assert told.signature == "version:1.0+2|examples:0|chat:no|lm-eval:0.4.13"


def test_filters_of_an_answer_are_told_apart(tmp_path: Path) -> None:
    both = [
        {"doc_id": 0, "target": "x", "exact_match": right, "filter": name}
        for name, right in (("strict-match", 0.0), ("flexible-extract", 1.0))
    ]
    folder = results(tmp_path, {"gsm8k": both}, results={"gsm8k": {}})

    told = harness_results.read(folder, "gsm8k", SUITES["gsm8k"].metrics, model(None)).scores

    assert {key: one.rows for key, one in told.items()} == {
        "number": {"gsm8k 0": (1.0, 1.0)},
        "marked_number": {"gsm8k 0": (0.0, 1.0)},
    }


def test_instructions_are_counted_one_by_one(tmp_path: Path) -> None:
    row = {
        "doc_id": 0,
        "target": 0,
        "prompt_level_strict_acc": False,
        "inst_level_strict_acc": [True, False, True],
    }
    folder = results(tmp_path, {"ifeval": [row]}, results={"ifeval": {}})

    told = harness_results.read(folder, "ifeval", SUITES["ifeval"].metrics, model(None)).scores

    assert told["prompts_followed"].rows == {"ifeval 0": (0.0, 1.0)}
    assert told["instructions_followed"].rows == {"ifeval 0": (2.0, 3.0)}


def test_rows_without_finite_scores_are_left_out(tmp_path: Path) -> None:
    rows = [
        {"doc_id": 0, "bits_per_byte": [float("nan"), 8]},
        {"doc_id": 1, "bits_per_byte": [-8 * math.log(2), 4]},
    ]
    figures = {"studio_rows": {"bits_per_byte_stderr,none": float("nan")}}
    folder = results(tmp_path, {"studio_rows": rows}, results=figures)

    told = harness_results.read(folder, "studio_rows", [ROW_METRICS["texts"]], model(None)).scores[
        "bits_per_byte"
    ]

    assert told.rows == {"studio_rows 1": pytest.approx((8.0, 4.0))}
    assert told.stderr is None


def test_folder_without_results_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="has not scored any row"):
        harness_results.read(tmp_path, "piqa", SUITES["piqa"].metrics, model(None))


def test_suite_without_rows_is_refused(tmp_path: Path) -> None:
    folder = results(tmp_path, {"piqa": []}, results={"piqa": {}})
    with pytest.raises(UnavailableError, match="has not scored any row"):
        harness_results.read(folder, "piqa", SUITES["piqa"].metrics, model(None))


def test_installed_lm_eval_has_every_suite_and_metric() -> None:
    spec = find_spec("lm_eval")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    tasks = Path(spec.submodule_search_locations[0], "tasks")
    texts = [file.read_text("utf-8") for file in tasks.rglob("*.yaml")]
    for suite in SUITES.values():
        line = re.compile(rf"^(task|group): {suite.name}$", re.MULTILINE)
        assert any(map(line.search, texts)), suite.name
    subjects = list((tasks / "mmlu/default").glob("mmlu_*.yaml"))
    assert len(subjects) == SUITES["mmlu"].parts
