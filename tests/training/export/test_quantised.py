"""Quantised exports of real runs: what plain transformers loads from them, and what is refused."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig

from studio.errors import InvalidError
from studio.protocols.events import Failed, Finished
from studio.protocols.run_dir import ExportDir, RunDir
from studio.recipe.exports import ExportDType, ExportKind, ExportSpec, number_format
from studio.runner import training_run
from studio.runner.execution import execute_export
from studio.training.evaluation.perplexity import Perplexity
from studio.training.export import export_source
from studio.training.export.quantised import checks, layers
from studio.training.stop_handler import StopHandler
from tests.training import tiny

pytest.importorskip("bitsandbytes", reason="the extra quantised is not installed")
pytest.importorskip("torchao", reason="the extra fp8 is not installed")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

LLAMA = LlamaConfig(
    vocab_size=320,
    hidden_size=128,
    intermediate_size=256,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=128,
)
OUTPUTS = 2 * (128 + 64 + 64 + 128 + 256 + 256 + 128)
LINEAR = 2 * (128 * (128 + 64 + 64 + 128) + 3 * 128 * 256)
"""Weights in linear layers, without the output layer."""
OTHERS = 2 * 320 * 128 + 5 * 128
FORMATS: tuple[tuple[ExportKind, ExportDType, float], ...] = (
    ("bitsandbytes", "int8", 0.005),
    ("bitsandbytes", "nf4", 0.02),
    ("bitsandbytes", "fp4", 0.03),
    ("torchao", "int8", 0.005),
)
"""With the share by which the loss of a model this small may differ."""
LOADED = """\
import json, sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained(sys.argv[1], trust_remote_code=False)
assert len(AutoTokenizer.from_pretrained(sys.argv[1]))
with torch.no_grad():
    logits = model(torch.arange(3, 40)[None]).logits.float()
print(json.dumps(logits.tolist()))
"""


@pytest.fixture(scope="module", params=["full", "lora"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    folder = tmp_path_factory.mktemp(request.param)
    adapter = tiny.LORA if request.param == "lora" else {}
    return tiny.train(folder / "run", tiny.write_model(folder / "base", LLAMA), **adapter)


def export(run: RunDir, kind: ExportKind, dtype: ExportDType) -> ExportDir:
    taken = len(list(run.exports.iterdir())) if run.exports.exists() else 0
    folder = run.export(taken + 1)
    folder.root.mkdir(parents=True)
    spec = ExportSpec(run=run.root, kind=kind, dtype=dtype)
    folder.job.write_text(spec.model_dump_json(), encoding="utf-8")
    execute_export(folder.root, StopHandler())
    return folder


def measured(folder: ExportDir) -> dict[str, float]:
    last = folder.events.read()[0][-1]
    assert isinstance(last, Finished), last
    return last.metrics


def refusal(folder: ExportDir) -> tuple[str, str]:
    last = folder.events.read()[0][-1]
    assert isinstance(last, Failed), last
    assert not folder.files.exists()
    return last.message, last.hint


def checks_of(folder: ExportDir) -> dict[str, Any]:
    report = json.loads((folder.files / "export.json").read_text(encoding="utf-8"))
    found: dict[str, Any] = report["checks"]
    return found


def load_elsewhere(files: Path) -> torch.Tensor:
    """Compute with transformers alone, in a process that knows nothing of the studio."""
    command = [sys.executable, "-W", "ignore", "-c", LOADED, str(files)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=files)
    return torch.tensor(json.loads(done.stdout.splitlines()[-1]))


@dataclass(frozen=True, slots=True)
class Made:
    """An export, with the share by which its loss may differ."""

    run: RunDir
    folder: ExportDir
    kind: ExportKind
    dtype: ExportDType
    share: float


@pytest.fixture(scope="module", params=FORMATS, ids=lambda one: "-".join(one[:2]))
def made(request: pytest.FixtureRequest, run: RunDir) -> Made:
    kind, dtype, share = request.param
    return Made(run, export(run, kind, dtype), kind, dtype, share)


def test_loss_and_size_are_as_the_format_says(made: Made) -> None:
    told, found = measured(made.folder), checks_of(made.folder)

    assert told["loss_after"] == pytest.approx(told["loss_before"], rel=made.share)
    assert found["quantised_weights"] == LINEAR
    assert told["weights"] == LINEAR + OTHERS
    row = number_format(made.kind, made.dtype)
    estimated = row.count_bytes(LINEAR + OTHERS, LINEAR, OUTPUTS)
    # In 4 bits, each layer has tables of its own: 1.2 kB.
    assert told["bytes"] == pytest.approx(estimated, rel=0.09)
    bits = row.bits + row.row_bits * OUTPUTS / LINEAR
    assert found["bits_per_quantised_weight"] == pytest.approx(bits, abs=0.5)
    assert not made.folder.merged.exists()


def test_folder_loads_in_plain_transformers(made: Made) -> None:
    files = made.folder.files
    plain = AutoModelForCausalLM.from_pretrained(files, trust_remote_code=False)
    examples = export_source.read(made.run, training_run.load_recipe(made.run)).examples
    assert examples is not None

    in_8_bits = {"torchao": "Int8Tensor", "bitsandbytes": "Int8Params"}[made.kind]
    kind = type(plain.model.layers[0].mlp.up_proj.weight).__name__
    assert kind == (in_8_bits if made.dtype == "int8" else "Params4bit")
    assert plain.lm_head.weight.dtype == plain.model.norm.weight.dtype == torch.bfloat16
    loss = tiny.loss_of(plain, examples, tiny.tokenizer().pad_token_id)
    assert loss == pytest.approx(measured(made.folder)["loss_after"], rel=0.002)


@pytest.mark.parametrize(("kind", "dtype"), [("bitsandbytes", "nf4"), ("torchao", "int8")])
def test_folder_loads_where_nothing_else_is_loaded(
    run: RunDir, kind: ExportKind, dtype: ExportDType
) -> None:
    files = export(run, kind, dtype).files
    plain = AutoModelForCausalLM.from_pretrained(files, trust_remote_code=False)
    with torch.no_grad():
        here = plain(torch.arange(3, 40)[None]).logits

    torch.testing.assert_close(load_elsewhere(files), here.float())


def test_card_and_report_say_what_is_needed(run: RunDir) -> None:
    folder = export(run, "bitsandbytes", "nf4")
    card = (folder.files / "README.md").read_text(encoding="utf-8")
    config = json.loads((folder.files / "config.json").read_text(encoding="utf-8"))
    report = json.loads((folder.files / "export.json").read_text(encoding="utf-8"))

    assert "in 4-bit (NF4)." in card
    assert (
        "To load this model, you need the package bitsandbytes: `pip install bitsandbytes`." in card
    )
    assert f"{LINEAR:,} of {LINEAR + OTHERS:,} weights are quantised." in card
    told = config["quantization_config"]
    assert (told["bnb_4bit_quant_type"], told["bnb_4bit_use_double_quant"]) == ("nf4", True)
    assert {"config.json", "model.safetensors"} <= {file["name"] for file in report["files"]}
    here = str(run.root.parent).encode()
    assert not any(here in path.read_bytes() for path in folder.files.iterdir())


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    folder = tmp_path_factory.mktemp("gpt2")
    config = GPT2Config(vocab_size=320, n_embd=64, n_layer=2, n_head=2, n_positions=128)
    return tiny.train(folder / "run", tiny.write_model(folder / "base", config))


@pytest.mark.parametrize("dtype", ["int8", "nf4"])
def test_transposed_layers_are_quantised(gpt2: RunDir, dtype: ExportDType) -> None:
    told = measured(export(gpt2, "bitsandbytes", dtype))

    assert told["loss_after"] == pytest.approx(told["loss_before"], rel=0.005)


def test_model_without_layers_to_quantise_is_refused(gpt2: RunDir) -> None:
    message, hint = refusal(export(gpt2, "torchao", "int8"))

    assert message.startswith("This model has no linear layers that torchao can quantise so:")
    assert hint == "Choose another format."


def test_layers_that_do_not_fit_blocks_are_kept(tmp_path: Path) -> None:
    base = tiny.write_model(tmp_path / "base", tiny.llama())
    folder = export(tiny.train(tmp_path / "run", base), "bitsandbytes", "nf4")
    found = checks_of(folder)

    # Only these have a multiple of 64 inputs.
    assert found["quantised_weights"] == 2 * 64 * 32
    assert not any("down_proj" in name for name in found["layers_not_quantised"])
    assert "12 layers stay in bfloat16" in found["notes"][-1]
    plain = AutoModelForCausalLM.from_pretrained(folder.files, trust_remote_code=False)
    layer = plain.model.layers[0].mlp
    kinds = [type(one.weight).__name__ for one in (layer.up_proj, layer.down_proj)]
    assert kinds == ["Parameter", "Params4bit"]


@pytest.mark.parametrize(("kind", "extra"), [("bitsandbytes", "quantised"), ("torchao", "fp8")])
def test_missing_package_is_named(
    run: RunDir, kind: ExportKind, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("studio.recipe.exports.find_spec", lambda _name: None)
    message, hint = refusal(export(run, kind, "int8"))

    assert message == f"The package {kind} is not installed, which writes this format."
    assert hint.endswith(f"pip install 'mantissa-studio[{extra}]'")


def test_changed_weight_is_refused(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the package read its own files wrongly."""
    original = layers.iter_weights
    monkeypatch.setattr(
        layers,
        "iter_weights",
        lambda *models: ((name, value * 1.5) for name, value in original(*models)),
    )
    message, _hint = refusal(export(run, "bitsandbytes", "nf4"))

    assert message.startswith("The files differ from the model: read back, a weight of ")


@pytest.mark.parametrize(
    ("dtype", "after", "is_refused"),
    [
        ("int8", 1.019, False),
        ("int8", 1.021, True),
        ("nf4", 1.09, False),
        ("nf4", 1.11, True),
        ("fp4", 0.5, False),
        ("fp4", float("nan"), True),
    ],
)
def test_loss_is_judged_by_format(dtype: ExportDType, after: float, is_refused: bool) -> None:  # noqa: FBT001 -- a parameter
    before, later = Perplexity(1.0, 10), Perplexity(after, 10)
    if not is_refused:
        checks.compare_loss(dtype, before, later)
        return
    with pytest.raises(InvalidError, match="this model answers much worse"):
        checks.compare_loss(dtype, before, later)
