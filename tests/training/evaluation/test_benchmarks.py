"""lm-eval in its own process: it measures what the studio measures, without a network."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest
import torch
from peft import PeftModel
from pyarrow import parquet
from transformers import AutoModelForCausalLM, AutoTokenizer

from studio.evaluation.benchmarks import METRICS
from studio.protocols.benchmarks import BenchmarkJob, BenchmarkResult, RowsSource, SuiteSource
from studio.protocols.evaluation import EvaluationJob
from studio.protocols.inference_service import GenerationRequest
from studio.protocols.run_dir import RunDir
from studio.protocols.tasks import TaskDir, TaskSpec
from studio.runner.tasks.benchmarks.benchmark import benchmark
from studio.runner.tasks.evaluate import evaluate
from tests.fakes.hub_server import HubServer, hub
from tests.support.waiting import wait_until
from tests.training import tiny

__all__ = ["hub"]
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

ROWS = 8
SUMS = [
    {
        "messages": [
            {"role": "user", "content": f"What is {number} plus {number}?"},
            {"role": "assistant", "content": str(2 * number)},
        ]
    }
    for number in range(ROWS)
]
LEARNT = {"optimisation__max_steps": 60, "data__validation_share": 0.2}

SPY = """
import os, sys
def look(event, args):
    if event in ("socket.connect", "socket.sendto", "socket.getaddrinfo", "socket.gethostbyname"):
        if not isinstance(args[-1], (str, bytes)):
            with open(os.environ["SPIED"], "a") as file:
                file.write(f"{event} {args}\\n")
sys.addaudithook(look)
"""
"""Writes down each attempt to reach a network, in every Python process that finds it."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """Train all weights until some sums are right."""
    root = tmp_path_factory.mktemp("full")
    return tiny.train(root / "run", tiny.write_model(root / "model", tiny.llama()), SUMS, **LEARNT)


@pytest.fixture(scope="module", params=["merged", "adapter"])
def lora(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """Train an adapter; lm-eval cuts the tables of its base unless they fit the tokenizer."""
    root, config = tmp_path_factory.mktemp(request.param), tiny.llama()
    if request.param == "adapter":
        config.vocab_size = len(tiny.tokenizer())
    model = tiny.write_model(root / "model", config)
    return tiny.train(root / "run", model, SUMS, **tiny.LORA, **LEARNT)


def request(run: RunDir, *, tuned: bool = True) -> GenerationRequest:
    spec = json.loads(run.job.read_text())
    is_full = not (run.artifacts / "adapter_config.json").exists()
    model = str(run.artifacts) if tuned and is_full else spec["model"]
    adapter = str(run.artifacts) if tuned and not is_full else ""
    return GenerationRequest(model=model, adapter=adapter, ids=[], stops=[])


def job(model: GenerationRequest, rows: Path, **changes: Any) -> BenchmarkJob:  # noqa: ANN401 -- fields
    fields = {
        "about": "run 1",
        "score_set": 1,
        "model": model,
        "chat_template": "model",
        "source": RowsSource(file=rows, rows=ROWS, max_new_tokens=6),
    }
    return BenchmarkJob.model_validate(fields | changes)


def folder(path: Path) -> TaskDir:
    made = TaskDir(path)
    made.files.mkdir(parents=True)
    return made


def measure(path: Path, asked: BenchmarkJob) -> BenchmarkResult:
    made = benchmark(folder(path), asked.model_dump(mode="json"), lambda _phase, _share: None)
    return BenchmarkResult.model_validate(made)


def evaluated(path: Path, model: GenerationRequest, rows: Path) -> list[dict[str, Any]]:
    """Return what the studio's own evaluation makes of the same rows."""
    asked = EvaluationJob(
        about="run 1",
        answer_set=1,
        model=model,
        train=rows,
        validation=None,
        is_whole=True,
        validation_share=0.2,
        seed=0,
        with_bad=False,
        rows=ROWS,
        chat_template="model",
        has_chat_template=True,
        has_expected=True,
        max_length=128,
        max_new_tokens=6,
    )
    made = evaluate(folder(path), asked.model_dump(mode="json"), lambda _phase, _share: None)
    answers: list[dict[str, Any]] = made["rows"]
    return answers


def likelihood(model: Any, ids: Sequence[int], start: int) -> float:  # noqa: ANN401 -- of transformers
    """Return the log-likelihood in nats of the tokens from `start` on."""
    tokens = torch.tensor([ids])
    with torch.no_grad():
        scores = model(tokens).logits.float().log_softmax(-1)[0, :-1]
    return float(scores[range(len(ids) - 1), tokens[0, 1:]][start - 1 :].sum())


def start_task(path: Path, asked: BenchmarkJob, **variables: str) -> subprocess.Popen[bytes]:
    """Start the process of the task, as the worker does."""
    made = folder(path)
    spec = TaskSpec(kind="benchmark", params=asked.model_dump(mode="json"))
    made.job.write_text(spec.model_dump_json())
    command = [sys.executable, "-m", "studio.runner.work_main", "task", str(path)]
    return subprocess.Popen(
        command, env=os.environ | variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def test_short_answers_are_the_studios_own_without_a_network(run: RunDir, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(SPY)
    path = f"{tmp_path}{os.pathsep}{Path.cwd()}"
    asked = job(request(run), run.root / "train.jsonl")
    child = start_task(tmp_path / "task", asked, PYTHONPATH=path, SPIED=str(tmp_path / "spied"))
    output = child.communicate()[0].decode()
    assert child.returncode == 0, output
    told = BenchmarkResult.model_validate_json((tmp_path / "task/result.json").read_text())
    own = evaluated(tmp_path / "own", request(run), run.root / "train.jsonl")

    assert not (tmp_path / "spied").exists(), (tmp_path / "spied").read_text()
    scores = told.scores["exact"].rows
    expected = {
        f"studio_rows {row['position']}": (float(row["answer"] == row["reference"]), 1.0)
        for row in own
    }
    assert scores == expected
    assert 0 < sum(right for right, _ in scores.values()) < ROWS
    assert told.computed_in == "float32"
    assert not (tmp_path / "task/files/lm-eval").exists()


def test_texts_are_as_likely_as_a_fresh_process_computes_it(lora: RunDir, tmp_path: Path) -> None:
    texts = [f"{number} plus {number + 1} is {2 * number + 1}. " * 12 for number in range(ROWS)]
    rows = tiny.write_rows(tmp_path / "texts.jsonl", ({"text": text} for text in texts))
    told = measure(tmp_path / "task", job(request(lora), rows)).scores["bits_per_byte"].rows
    model, tokenizer = load(lora)

    for number, text in enumerate(texts):
        ids = [tokenizer.eos_token_id, *tokenizer(text, add_special_tokens=False)["input_ids"]]
        bits, size = told[f"studio_rows {number}"]
        assert bits * math.log(2) == pytest.approx(-likelihood(model, ids, 1), abs=1e-3)
        assert size == len(text.encode())


def load(lora: RunDir) -> tuple[Any, Any]:
    base = AutoModelForCausalLM.from_pretrained(
        json.loads(lora.job.read_text())["model"], dtype="float32"
    )
    model = PeftModel.from_pretrained(base, lora.artifacts).eval()
    return model, AutoTokenizer.from_pretrained(lora.artifacts)


def test_suite_is_downloaded_from_the_hub(run: RunDir, tmp_path: Path, hub: HubServer) -> None:
    columns = {
        "id": [str(number) for number in range(12)],
        "question": [f"What is {number} plus 1?" for number in range(12)],
        "choices": [{"text": ["one", "two"], "label": ["A", "B"]}] * 12,
        "answerKey": ["A", "B"] * 6,
    }
    parquet.write_table(pa.table(columns), tmp_path / "rows.parquet")
    content = (tmp_path / "rows.parquet").read_bytes()
    card = (
        "---\nconfigs:\n- config_name: ARC-Easy\n  data_files:\n"
        + "".join(
            f"  - split: {split}\n    path: ARC-Easy/{split}.parquet\n"
            for split in ("train", "validation", "test")
        )
        + "---\n"
    )
    files = {f"ARC-Easy/{split}.parquet": content for split in ("train", "validation", "test")}
    hub.dataset("allenai/ai2_arc", {"README.md": card.encode(), **files})
    asked = job(request(run), Path(), source=SuiteSource(suite="arc_easy", rows=10))
    child = start_task(
        tmp_path / "task", asked, STUDIO_HUB_ENDPOINT=hub.url, STUDIO_HOME=str(tmp_path / "home")
    )
    output = child.communicate()[0].decode()
    assert child.returncode == 0, output
    told = BenchmarkResult.model_validate_json((tmp_path / "task/result.json").read_text())

    assert list(told.scores) == ["accuracy", "accuracy_by_length"]
    assert list(told.scores["accuracy"].rows) == [f"arc_easy {number}" for number in range(10)]
    share = METRICS["accuracy"].aggregate(
        [math.fsum(one) for one in zip(*told.scores["accuracy"].rows.values(), strict=True)]
    )
    error = told.scores["accuracy"].stderr
    assert error == pytest.approx(math.sqrt(share * (1 - share) / 9))
    assert told.signature == "version:1.0|examples:0|chat:yes|lm-eval:0.4.13"


def test_lm_eval_ends_together_with_its_task(run: RunDir, tmp_path: Path) -> None:
    task = start_task(tmp_path / "task", job(request(run), run.root / "train.jsonl"))
    wait_until(lambda: bool(harnesses(task.pid)), seconds=120)
    (child,) = harnesses(task.pid)
    task.kill()
    task.communicate()

    wait_until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)


def harnesses(pid: int) -> list[psutil.Process]:
    """Return the processes of lm-eval that a task has started."""
    children = psutil.Process(pid).children()
    return [child for child in children if any("harness_main" in word for word in child.cmdline())]
