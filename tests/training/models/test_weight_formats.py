"""A frozen model that is loaded as it was saved: each weight keeps the format of its file."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPTNeoXConfig,
    MixtralConfig,
    PreTrainedConfig,
)

from studio.protocols.events import Finished, Sampled, Started
from studio.protocols.run_dir import RunDir
from studio.recipe.adapters import Lora
from studio.recipe.precision import PRECISIONS
from studio.services.precision import number_formats
from studio.training.models import loader, weight_formats
from studio.weights import model_facts
from studio.weights.safetensors_headers import INDEX_FILE, WEIGHTS_FILE
from tests.support.factories import make_recipe
from tests.training import tiny

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:fan_in_fan_out"),
]

LORA: dict[str, Any] = {"adapter__kind": "lora", "precision": "bf16"}
NATIVE = Lora()

Which = Callable[[str], bool]


def saved(folder: Path, config: PreTrainedConfig, is_narrow: Which, declared: str) -> Path:
    """Save a model with some weights in bfloat16, the rest in float32, and any config."""
    tiny.write_model(folder, config)
    file = folder / WEIGHTS_FILE
    weights = {
        name: one.bfloat16() if is_narrow(name) else one for name, one in load_file(file).items()
    }
    save_file(weights, file, metadata={"format": "pt"})
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"dtype": declared}))
    return folder


def loaded(folder: Path, precision: str = "bf16") -> tuple[Any, weight_formats.WeightFormats]:
    config = loader.load_config(str(folder))
    formats = weight_formats.choose_formats(str(folder), config, PRECISIONS[precision], NATIVE)
    return loader.load_model(str(folder), config, formats.main, own=formats.own), formats


def formats_by_name(model: Any) -> dict[str, torch.dtype]:  # noqa: ANN401 -- any model of upstream
    return {name: one.dtype for name, one in model.state_dict().items()}


def neox() -> PreTrainedConfig:
    return GPTNeoXConfig(
        vocab_size=320,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=128,
    )


def gpt2() -> PreTrainedConfig:
    return GPT2Config(vocab_size=320, n_embd=32, n_layer=2, n_head=2, n_positions=128)


def test_weight_format_is_read_from_file_not_config(tmp_path: Path) -> None:
    folder = saved(tmp_path / "model", tiny.llama(), lambda _name: False, "bfloat16")
    model, formats = loaded(folder)

    assert (formats.main, formats.own) == ("float32", {})
    assert set(formats_by_name(model).values()) == {torch.float32}
    for name, weight in load_file(folder / WEIGHTS_FILE).items():
        assert model.state_dict()[name].equal(weight)


def test_each_weight_keeps_its_file_format(tmp_path: Path) -> None:
    folder = saved(tmp_path / "model", tiny.llama(), lambda name: "mlp" not in name, "bfloat16")
    model, formats = loaded(folder)

    found = formats_by_name(model)
    for name, weight in load_file(folder / WEIGHTS_FILE).items():
        # A vector of a model in several formats is widened, which changes no value.
        wanted = weight if weight.dim() > 1 else weight.float()
        assert model.state_dict()[name].equal(wanted), name
        assert found[name] == wanted.dtype
    assert formats.all_formats == {"bfloat16", "float32"}


def test_fused_weight_uses_widest_format_of_its_parts(tmp_path: Path) -> None:
    config = MixtralConfig(
        **{
            name: value
            for name, value in tiny.llama().to_dict().items()
            if name in {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"}
        },
        num_attention_heads=2,
        num_key_value_heads=1,
        num_local_experts=2,
        num_experts_per_tok=1,
    )
    folder = saved(tmp_path / "model", config, lambda name: "experts.1" not in name, "bfloat16")
    model, formats = loaded(folder)

    stacks = {name: one for name, one in formats.own.items() if "experts" in name}
    assert set(stacks.values()) == {"float32"}
    found = formats_by_name(model)
    assert all(found[name] == torch.float32 for name in stacks)


def test_sharded_weights_keep_their_file_formats(tmp_path: Path) -> None:
    folder = saved(tmp_path / "model", tiny.llama(), lambda name: "mlp" not in name, "bfloat16")
    weights = load_file(folder / WEIGHTS_FILE)
    (folder / WEIGHTS_FILE).unlink()
    names = sorted(weights)
    for number, part in enumerate((names[::2], names[1::2]), 1):
        file = folder / f"model-0000{number}-of-00002.safetensors"
        save_file({name: weights[name] for name in part}, file, metadata={"format": "pt"})
    # Whatever file the index names for a weight, its own header says what it is.
    places = dict.fromkeys(weights, "model-00001-of-00002.safetensors")
    places[names[1]] = "model-00002-of-00002.safetensors"
    (folder / INDEX_FILE).write_text(json.dumps({"metadata": {}, "weight_map": places}))

    found = formats_by_name(loaded(folder)[0])

    assert found["model.layers.0.mlp.up_proj.weight"] == torch.float32
    assert found["model.layers.0.self_attn.q_proj.weight"] == torch.bfloat16


def test_unused_tensor_does_not_change_weight_formats(tmp_path: Path) -> None:
    folder = saved(tmp_path / "model", tiny.llama(), lambda _name: True, "bfloat16")
    weights = load_file(folder / WEIGHTS_FILE) | {"model.unused.weight": torch.ones(4, 4)}
    save_file(weights, folder / WEIGHTS_FILE, metadata={"format": "pt"})

    model, formats = loaded(folder)

    # A vector is widened where a file mixes formats; no matrix is.
    matrices = {name: one for name, one in model.state_dict().items() if one.dim() > 1}
    assert {one.dtype for one in matrices.values()} == {torch.bfloat16}
    assert all(model.state_dict()[name].dim() == 1 for name in formats.own)


def test_float32_mode_widens_weights_without_rounding(tmp_path: Path) -> None:
    folder = saved(tmp_path / "model", tiny.llama(), lambda name: "mlp" not in name, "bfloat16")
    model, formats = loaded(folder, "fp32")

    assert (formats.main, formats.own) == ("float32", {})
    for name, weight in load_file(folder / WEIGHTS_FILE).items():
        assert model.state_dict()[name].equal(weight.float())


@pytest.mark.slow
@pytest.mark.parametrize("config", [tiny.llama(), gpt2(), neox()], ids=lambda one: one.model_type)
@pytest.mark.parametrize(("precision", "narrow"), [("bf16", "layers"), ("fp16", "embed")])
def test_model_in_two_formats_trains_as_planned(
    tmp_path: Path, config: PreTrainedConfig, precision: str, narrow: str
) -> None:
    is_narrow: dict[str, Which] = {
        "embed": lambda name: "embed" in name or "wte" in name or "wpe" in name,
        "layers": lambda name: "embed" not in name and "wte" not in name,
    }
    folder = saved(tmp_path / "model", config, is_narrow[narrow], "bfloat16")
    turned = LORA | {"precision": precision, "samples__prompts": 1}
    run = tiny.train(tmp_path / "run", folder, **turned)

    assert isinstance(tiny.last_event(run), Finished), tiny.last_event(run)
    resolved = tiny.events_of(run, Started)[0].resolved
    assert resolved["plan"]["weights"] == resolved["audit"]["weights"] == "bfloat16 and float32"
    asked = make_recipe(precision=precision, adapter={"kind": "lora"})
    told = number_formats.plan_dtypes(asked, model_facts.read(folder))
    assert told.weights == "bfloat16 and float32"
    assert {one.stage for one in tiny.events_of(run, Sampled)} >= {"before", "after"}


@pytest.mark.slow
def test_planned_size_of_model_in_two_formats_matches_memory(tmp_path: Path) -> None:
    folder = saved(tmp_path / "model", tiny.llama(), lambda name: "mlp" not in name, "bfloat16")
    model, _formats = loaded(folder)
    sizes = number_formats.plan_dtypes(
        make_recipe(precision="bf16", adapter={"kind": "lora"}), model_facts.read(folder)
    )

    held = sum({one.data_ptr(): one.nbytes for one in model.parameters()}.values())
    assert sizes.sizes is not None
    assert sizes.sizes.weights == held


def same_bits(run: RunDir) -> float:
    return tiny.metric_values(run, "eval_loss")[0]


@pytest.mark.slow
def test_native_load_of_float32_file_equals_float32_load(tmp_path: Path) -> None:
    """Rounded to bfloat16, as its config has it, it would start elsewhere."""
    folder = saved(tmp_path / "model", tiny.llama(), lambda _name: False, "bfloat16")
    native = tiny.train(tmp_path / "native", folder, **LORA)
    wide = tiny.train(tmp_path / "wide", folder, **LORA, adapter__base_dtype="float32")

    assert same_bits(native) == same_bits(wide)
    assert AutoModelForCausalLM.from_pretrained(folder).dtype == torch.bfloat16
