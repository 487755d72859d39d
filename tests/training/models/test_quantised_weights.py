"""Frozen models in 8 and 4 bits: they train, they are what the plan said, and they are small."""

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    LlamaConfig,
    MixtralConfig,
    PreTrainedConfig,
    RwkvConfig,
)

from studio.errors import TrainingError
from studio.methods import RECIPE_ADAPTER
from studio.protocols.events import Failed, Finished, Started
from studio.protocols.run_dir import RunDir
from studio.recipe.precision import PRECISIONS, QUANTISED, PrecisionName
from studio.runner import training_run
from studio.services.precision import number_formats
from studio.training.models import loader, quantised_weights
from studio.training.stop_handler import StopHandler
from studio.weights import model_facts
from tests.training import tiny

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

MODES: list[PrecisionName] = ["bf16", "fp32", "fp16"]
CASES = list(product(QUANTISED, MODES))

SIZE: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 128,
}
OTHERS: dict[str, PreTrainedConfig] = {
    "gpt2": GPT2Config(vocab_size=320, n_embd=32, n_layer=2, n_head=2, n_positions=128),
    "rwkv": RwkvConfig(
        vocab_size=320, hidden_size=32, num_hidden_layers=7, context_length=128, eos_token_id=2
    ),
    "odd sizes": LlamaConfig(**SIZE | {"hidden_size": 36, "intermediate_size": 51}),
}


def lora(kind: str, **changes: object) -> dict[str, Any]:
    return {"adapter__kind": "lora", "adapter__base_dtype": kind} | changes


def prepared(model: Path, root: Path, **changes: object) -> training_run.TrainingRun:
    run = tiny.write_run(root, model, **changes)
    return training_run.prepare(run, run.events.append, StopHandler())


def resolved(run: RunDir) -> dict[str, Any]:
    told: dict[str, Any] = tiny.events_of(run, Started)[0].resolved
    return told


@pytest.fixture(scope="module")
def runs(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], RunDir]:
    """Train the same run once in each kind and mode."""
    root = tmp_path_factory.mktemp("quantised")
    return {
        (kind, mode): tiny.train(
            root / f"{kind}-{mode}", model, precision=mode, samples__prompts=1, **lora(kind)
        )
        for kind, mode in CASES
    }


@pytest.mark.parametrize("case", CASES)
def test_adapter_learns_on_quantised_base(
    runs: dict[tuple[str, str], RunDir], case: tuple[str, str]
) -> None:
    losses = tiny.metric_values(runs[case], "loss")

    assert isinstance(tiny.last_event(runs[case]), Finished)
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("case", CASES)
def test_audit_matches_quantised_plan(
    runs: dict[tuple[str, str], RunDir], case: tuple[str, str]
) -> None:
    told, (kind, mode) = resolved(runs[case]), case
    plan, audit = told["plan"], told["audit"]
    compute = PRECISIONS[mode].compute

    assert {name: audit[name] for name in plan} == plan
    assert [audit[name] for name in ("weights", "rest", "trained", "compute", "matmul")] == [
        kind,
        compute,
        "float32",
        compute,
        compute,
    ]
    assert audit["quantised_layers"] == f"14 of 15 linear layers are {kind}"
    assert audit["trained_tensors"] == "28, all in the optimizer"


@pytest.mark.parametrize("kind", QUANTISED)
def test_quantised_run_writes_metrics_card_and_adapter(
    runs: dict[tuple[str, str], RunDir], kind: str
) -> None:
    run = runs[kind, "bf16"]

    assert len(tiny.metric_values(run, "update_ratio")) == 1
    card = (run.artifacts / "README.md").read_text(encoding="utf-8")
    assert f"a LoRA adapter trained on the model in {QUANTISED[kind].title}" in card
    assert (run.artifacts / "adapter_model.safetensors").is_file()


@pytest.mark.parametrize("kind", QUANTISED)
def test_adapter_has_same_loss_on_original_model(
    runs: dict[tuple[str, str], RunDir], model: Path, kind: str, tmp_path: Path
) -> None:
    made = prepared(model, tmp_path / "run", precision="fp32")
    held, reader = made.job.validation, made.job.tokenizer
    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    before = tiny.loss_of(base, held, reader.pad_token_id)

    adapted = PeftModel.from_pretrained(base, runs[kind, "fp32"].artifacts)

    after = tiny.loss_of(adapted, held, reader.pad_token_id)
    assert after < before
    assert after == pytest.approx(tiny.metric_values(runs[kind, "fp32"], "eval_loss")[-1], rel=0.01)


def test_parameter_count_does_not_depend_on_quantisation(
    runs: dict[tuple[str, str], RunDir],
) -> None:
    counted = {resolved(run)["parameters"] for run in runs.values()}

    assert len(counted) == 1


@pytest.mark.parametrize("kind", QUANTISED)
@pytest.mark.parametrize("mode", ["bf16", "fp32"])
def test_quantised_weight_size_matches_plan(kind: str, mode: str, tmp_path: Path) -> None:
    config = tiny.llama()
    config.hidden_size, config.intermediate_size = 512, 1024
    folder = tiny.write_model(tmp_path / "model", config)
    made = prepared(folder, tmp_path / "run", precision=mode, **lora(kind))

    found = quantised_weights.stored_bytes(made.trainer.model)

    recipe = RECIPE_ADAPTER.validate_python(made.recipe.model_dump())
    sizes = number_formats.plan_dtypes(recipe, model_facts.read(folder)).sizes
    assert sizes is not None
    assert found == pytest.approx(sizes.weights + sizes.adapter, rel=0.01)


@pytest.mark.parametrize("kind", QUANTISED)
def test_evaluation_does_not_change_gradients(kind: str, model: Path, tmp_path: Path) -> None:
    made = prepared(model, tmp_path / "run", precision="fp32", **lora(kind))
    adapted = made.trainer.model
    tokens = torch.arange(16).reshape(2, 8)

    def gradients() -> dict[str, float]:
        adapted.zero_grad()
        adapted.train()(input_ids=tokens, labels=tokens).loss.backward()
        named = adapted.named_parameters()
        return {name: p.grad.norm().item() for name, p in named if "lora_B" in name}

    before = gradients()
    with torch.no_grad():
        adapted.eval()(input_ids=tokens)

    assert gradients() == before
    assert min(before.values()) > 0


@pytest.mark.parametrize("kind", QUANTISED)
def test_adapter_is_initialised_in_full_float32_precision(
    kind: str, model: Path, tmp_path: Path
) -> None:
    made = prepared(model, tmp_path / "run", precision="fp32", **lora(kind))

    named = made.trainer.model.named_parameters()
    drawn = torch.cat([p.flatten() for name, p in named if "lora_A" in name])
    assert drawn.dtype == torch.float32
    assert not torch.equal(drawn, drawn.bfloat16().float())


def test_audit_detects_unquantised_layer(model: Path, tmp_path: Path) -> None:
    made = prepared(model, tmp_path / "run", precision="bf16", **lora("nf4"))
    layer = made.trainer.model.get_base_model().model.layers[1].mlp.up_proj
    layer.base_layer = torch.nn.Linear(32, 64, bias=False, dtype=torch.bfloat16)
    layer.base_layer.requires_grad_(requires_grad=False)

    with pytest.raises(TrainingError) as caught:
        made.trainer.train()

    assert caught.value.message.endswith(
        "differently: weights should be nf4 and is bfloat16 and nf4."
    )


def test_audit_detects_wrong_compute_dtype_of_quantised_layer(model: Path, tmp_path: Path) -> None:
    made = prepared(model, tmp_path / "run", precision="fp32", **lora("nf4"))
    first = made.trainer.model.get_base_model().model.layers[0].self_attn.q_proj.base_layer
    first.compute_dtype = torch.bfloat16

    with pytest.raises(TrainingError, match="matmul should be float32 and is bfloat16"):
        made.trainer.train()


def test_audit_detects_unquantised_expert_stacks(tmp_path: Path) -> None:
    model = tiny.write_model(tmp_path / "model", MixtralConfig(**SIZE, num_local_experts=2))

    run = tiny.train(tmp_path / "run", model, precision="bf16", **lora("nf4"))

    assert "weights should be nf4 and is bfloat16 and nf4" in tiny.events_of(run, Failed)[0].message


@pytest.mark.parametrize("kind", QUANTISED)
@pytest.mark.parametrize("family", OTHERS)
def test_other_model_families_train_quantised(family: str, kind: str, tmp_path: Path) -> None:
    model = tiny.write_model(tmp_path / "model", OTHERS[family])

    run = tiny.train(
        tmp_path / "run", model, precision="bf16", optimisation__max_steps=2, **lora(kind)
    )

    assert isinstance(tiny.last_event(run), Finished), tiny.events_of(run, Failed)
    assert resolved(run)["audit"]["weights"] == kind


@pytest.mark.parametrize("name", QUANTISED)
def test_predicted_quantisation_error_matches_real_error(name: str, tmp_path: Path) -> None:
    config = tiny.llama()
    config.hidden_size, config.intermediate_size = 256, 512
    folder = tiny.write_model(tmp_path / "model", config)
    exact = loader.load_model(str(folder), config, "float32").model.layers[0].mlp.up_proj.weight
    loaded = loader.load_model(str(folder), config, "float32", QUANTISED[name])
    layer = loaded.model.layers[0].mlp.up_proj

    rounded = layer.train()(torch.eye(256)).T

    real = ((rounded - exact).norm() / exact.norm()).item()
    assert model_facts.read(folder).quantisation_errors[name] == pytest.approx(real, rel=0.05)
