"""Exports of real runs: what they hold, what plain transformers makes of it, what was measured."""

import json
import math
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config

from studio.protocols.events import Failed, Finished, PhaseChanged
from studio.protocols.run_dir import ExportDir, RunDir
from studio.recipe.exports import ExportKind, ExportSpec
from studio.recipe.precision import DType
from studio.runner.execution import execute_export
from studio.training.stop_handler import StopHandler
from tests.support.waiting import wait_until
from tests.training import tiny

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

IDS = torch.arange(3, 40)[None]
PLAIN = {
    "README.md",
    "chat_template.jinja",
    "config.json",
    "export.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
}


@pytest.fixture(scope="module")
def full(model: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    return tiny.train(tmp_path_factory.mktemp("full") / "run", model)


@pytest.fixture(scope="module")
def lora(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """Train an adapter beside a base that is stored in bfloat16."""
    folder = tmp_path_factory.mktemp("lora")
    base = tiny.write_model(folder / "base", tiny.llama())
    AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16).save_pretrained(base)
    return tiny.train(folder / "run", base, adapter__kind="lora")


def laid_out(run: RunDir, dtype: DType, kind: ExportKind) -> ExportDir:
    taken = len(list(run.exports.iterdir())) if run.exports.exists() else 0
    folder = run.export(taken + 1)
    folder.root.mkdir(parents=True)
    spec = ExportSpec(run=run.root, kind=kind, dtype=dtype)
    folder.job.write_text(spec.model_dump_json(), encoding="utf-8")
    return folder


def exported(run: RunDir, dtype: DType, kind: ExportKind) -> tuple[ExportDir, dict[str, float]]:
    folder = laid_out(run, dtype, kind)
    assert execute_export(folder.root, StopHandler()) == 0
    finished = folder.events.read()[0][-1]
    assert isinstance(finished, Finished)
    return folder, finished.metrics


def logits(model: Any) -> torch.Tensor:  # noqa: ANN401 -- any model of upstream
    with torch.no_grad():
        found: torch.Tensor = model.eval()(IDS).logits.float()
    return found


def as_trained(run: RunDir) -> torch.Tensor:
    """Compute with the adapter beside its base, in float32."""
    spec = json.loads(run.job.read_text(encoding="utf-8"))
    base = AutoModelForCausalLM.from_pretrained(spec["model"], dtype=torch.float32)
    return logits(PeftModel.from_pretrained(base, run.artifacts))


def test_full_float32_export_equals_run_model(full: RunDir) -> None:
    folder, told = exported(full, "float32", "full")
    plain = AutoModelForCausalLM.from_pretrained(folder.files)
    trained = AutoModelForCausalLM.from_pretrained(full.artifacts)

    assert logits(plain).equal(logits(trained))
    assert (told["changed_weights"], told["max_relative_change"]) == (0, 0.0)
    assert told["perplexity_after"] == told["perplexity_before"]
    assert {path.name for path in folder.files.iterdir()} == PLAIN


def test_perplexity_before_export_equals_last_validation(full: RunDir) -> None:
    told = exported(full, "float32", "full")[1]

    loss = tiny.metric_values(full, "eval_loss")[-1]
    assert math.log(told["perplexity_before"]) == pytest.approx(loss, rel=1e-5)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_16_bit_export_loads_in_plain_transformers(full: RunDir, dtype: DType) -> None:
    folder, told = exported(full, dtype, "full")
    plain = AutoModelForCausalLM.from_pretrained(folder.files)

    assert {str(one.dtype) for one in plain.parameters()} == {f"torch.{dtype}"}
    assert told["bytes"] == (folder.files / "model.safetensors").stat().st_size
    assert told["perplexity_after"] == pytest.approx(told["perplexity_before"], rel=0.01)
    assert told["perplexity_after"] != told["perplexity_before"]


def test_merged_float32_export_matches_adapter_on_base(lora: RunDir) -> None:
    folder, told = exported(lora, "float32", "merged")
    plain = AutoModelForCausalLM.from_pretrained(folder.files)

    torch.testing.assert_close(logits(plain), as_trained(lora), rtol=1e-4, atol=1e-5)
    assert told["perplexity_after"] == pytest.approx(told["perplexity_before"], rel=1e-5)
    assert {path.name for path in folder.files.iterdir()} == PLAIN
    assert not folder.merged.exists()


@pytest.mark.smoke
def test_merged_export_is_rounded_only_once(lora: RunDir) -> None:
    wide = exported(lora, "float32", "merged")[0]
    narrow, told = exported(lora, "bfloat16", "merged")

    exact = load_file(wide.files / "model.safetensors")
    written = load_file(narrow.files / "model.safetensors")
    assert all(written[name].equal(exact[name].bfloat16()) for name in exact)
    assert 0 < told["mean_relative_change"] < 2**-9


@pytest.fixture(scope="module", params=["nf4", "int8", "gpt2 in nf4", "bfloat16"])
def beside(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """Train an adapter beside a base that loading quantises or rounds."""
    folder = tmp_path_factory.mktemp("beside")
    family, _, dtype = request.param.rpartition(" in ")
    config = (
        GPT2Config(vocab_size=320, n_embd=64, n_layer=2, n_head=2, n_positions=128)
        if family
        else tiny.llama()
    )
    base = tiny.write_model(folder / "base", config)
    knobs = {"adapter__kind": "lora", "adapter__base_dtype": dtype, "precision": "bf16"}
    return tiny.train(folder / "run", base, optimisation__max_steps=8, **knobs)


def test_merged_export_has_same_loss_as_trained_model(beside: RunDir) -> None:
    told = exported(beside, "float32", "merged")[1]

    assert told["changed_weights"] == 0
    # Products of 8 bits round what they read as well, which no plain model does.
    near = 1e-3 if "int8" in beside.recipe.read_text(encoding="utf-8") else 1e-5
    assert told["loss_after"] == pytest.approx(told["loss_before"], rel=near)
    assert math.log(told["perplexity_after"]) == pytest.approx(told["loss_after"])
    # The run has measured itself so, computing in bfloat16.
    assert told["loss_before"] == pytest.approx(
        tiny.metric_values(beside, "eval_loss")[-1], rel=5e-3
    )


def test_merge_with_original_base_differs_and_card_warns(beside: RunDir) -> None:
    folder, told = exported(beside, "float32", "merged_original")
    trained = exported(beside, "float32", "merged")[1]

    assert told["perplexity_before"] == trained["perplexity_before"]
    assert told["perplexity_after"] != pytest.approx(trained["perplexity_after"], rel=1e-7)
    assert told["changed_weights"] > told["weights"] / 2
    assert told["mean_relative_change"] > 1e-4
    assert {path.name for path in folder.files.iterdir()} == PLAIN
    assert not folder.merged.exists()
    card = (folder.files / "README.md").read_text(encoding="utf-8")
    assert "this is not the model that was trained" in card
    assert f"| loss after | {told['loss_after']:,.6g} |" in card


def test_adapter_card_code_loads_adapter_on_base(beside: RunDir) -> None:
    folder, told = exported(beside, "float32", "adapter")
    code = (folder.files / "README.md").read_text(encoding="utf-8").split("```python\n")[1]
    spec = json.loads(beside.job.read_text(encoding="utf-8"))
    code = code.split("```")[0].replace("path/to/tiny", spec["model"])
    names: dict[str, Any] = {}
    exec(code.replace("path/to/this/folder", str(folder.files)), names)  # noqa: S102 -- our own card

    assert told["loss_after"] == told["loss_before"]
    assert isinstance(names["model"], PeftModel)


def test_exported_adapter_loads_on_its_base(lora: RunDir) -> None:
    folder, told = exported(lora, "bfloat16", "adapter")
    base = json.loads(lora.job.read_text(encoding="utf-8"))["model"]
    on_base = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), folder.files
    )

    torch.testing.assert_close(logits(on_base), as_trained(lora), rtol=0.05, atol=0.02)
    assert told["perplexity_after"] == pytest.approx(told["perplexity_before"], rel=0.01)
    assert "adapter_model.safetensors" in {path.name for path in folder.files.iterdir()}


@pytest.mark.parametrize("kind", ["merged", "adapter"])
def test_exported_files_contain_no_local_paths(lora: RunDir, kind: ExportKind) -> None:
    folder = exported(lora, "float16", kind)[0]

    here = str(lora.root.parent).encode()
    naming = [path.name for path in folder.files.iterdir() if here in path.read_bytes()]
    assert naming == []


def test_adapter_config_names_base_without_path(lora: RunDir) -> None:
    config = json.loads((lora.artifacts / "adapter_config.json").read_text(encoding="utf-8"))

    assert config["base_model_name_or_path"] == "tiny"


def test_model_card_shows_format_and_metrics(full: RunDir) -> None:
    folder, told = exported(full, "bfloat16", "full")

    card = (folder.files / "README.md").read_text(encoding="utf-8")
    assert "# Sums, bfloat16\n" in card
    assert f"| mean relative change | {told['mean_relative_change']:.6g} |" in card
    assert f"| perplexity after | {told['perplexity_after']:,.6g} |" in card


def test_export_counts_overflowed_weights(full: RunDir, tmp_path: Path) -> None:
    broken = RunDir(tmp_path / "run")
    broken.root.mkdir()
    for path in (full.recipe, full.job):
        (broken.root / path.name).write_bytes(path.read_bytes())
    AutoModelForCausalLM.from_pretrained(full.artifacts).save_pretrained(broken.artifacts)
    AutoTokenizer.from_pretrained(full.artifacts).save_pretrained(broken.artifacts)
    weights = load_file(broken.artifacts / "model.safetensors")
    weights["lm_head.weight"][:2] = 70000.0
    save_file(weights, broken.artifacts / "model.safetensors", metadata={"format": "pt"})

    told = exported(broken, "float16", "full")[1]

    assert told["overflowed_weights"] == weights["lm_head.weight"][:2].numel()
    assert not math.isnan(told["perplexity_before"])
    assert math.isnan(told["perplexity_after"])


def test_export_without_dataset_skips_perplexity(lora: RunDir, tmp_path: Path) -> None:
    spec = json.loads(lora.job.read_text(encoding="utf-8"))
    moved = RunDir(tmp_path / "run")
    moved.root.mkdir()
    moved.artifacts.symlink_to(lora.artifacts)
    moved.recipe.write_bytes(lora.recipe.read_bytes())
    moved.job.write_text(json.dumps(spec | {"train": str(tmp_path / "gone.jsonl")}))

    told = exported(moved, "bfloat16", "merged")[1]

    assert "perplexity_after" not in told
    assert told["changed_weights"] > 0


def test_export_without_model_fails_and_leaves_no_files(full: RunDir, tmp_path: Path) -> None:
    empty = RunDir(tmp_path / "run")
    empty.artifacts.mkdir(parents=True)
    for path in (full.recipe, full.job):
        (empty.root / path.name).write_bytes(path.read_bytes())
    folder = laid_out(empty, "float16", "full")

    assert execute_export(folder.root, StopHandler()) == 1
    assert isinstance(folder.events.read()[0][-1], Failed)
    assert not folder.files.exists()


def test_killed_export_leaves_no_files_and_no_finished_event(full: RunDir) -> None:
    folder = laid_out(full, "bfloat16", "full")
    command = [sys.executable, "-m", "studio.runner.work_main", "export", str(folder.root)]
    with folder.log.open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)

    def is_measuring() -> bool:
        told = [one.name for one in folder.events.read()[0] if isinstance(one, PhaseChanged)]
        return "measuring before" in told

    wait_until(is_measuring)
    process.send_signal(signal.SIGKILL)
    process.wait()

    assert not folder.files.exists()
    assert not any(isinstance(event, Finished) for event in folder.events.read()[0])
