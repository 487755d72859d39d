"""Computing in float32 with a model that trains in another precision."""

from copy import deepcopy

import pytest
import torch
from accelerate.utils import convert_outputs_to_fp32
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    LlamaConfig,
    MixtralConfig,
    PreTrainedConfig,
)

from studio.training.precision.float32_forward import float32_forward
from tests.training.models.test_families import FAMILIES, SIZE

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

CPU = torch.device("cpu")
IDS = torch.arange(3, 27).view(2, 12)
MODELS: dict[str, PreTrainedConfig] = {
    "llama": LlamaConfig(**SIZE),
    "tied": LlamaConfig(**SIZE, tie_word_embeddings=True),
    "gemma3": Gemma3TextConfig(**SIZE, query_pre_attn_scalar=16),
    "mixtral": MixtralConfig(**SIZE, num_local_experts=2),
    "gpt2": FAMILIES["gpt2"],
    "mamba": FAMILIES["mamba"],
}
assert isinstance(MODELS["gpt2"], GPT2Config)


def make_model(family: str, dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(0)
    model: nn.Module = AutoModelForCausalLM.from_config(MODELS[family]).to(dtype)
    return model.eval()


def logits(model: nn.Module) -> Tensor:
    with torch.no_grad():
        found: Tensor = model(input_ids=IDS).logits
    return found.float()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("family", MODELS)
def test_model_computes_as_its_float32_copy(family: str, dtype: torch.dtype) -> None:
    model = make_model(family, dtype)
    wide = deepcopy(model).float()
    before = {name: (one.dtype, one.data_ptr()) for name, one in model.named_parameters()}
    usual = logits(model)

    with float32_forward(model, CPU):
        exact = logits(model)

    assert torch.allclose(exact, logits(wide), atol=1e-6, rtol=1e-5)
    assert torch.equal(exact, usual) == (dtype == torch.float32)
    assert {n: (one.dtype, one.data_ptr()) for n, one in model.named_parameters()} == before
    assert torch.equal(logits(model), usual)


def test_autocast_of_the_trainer_is_bypassed() -> None:
    model = make_model("llama", torch.float32)
    exact = logits(model)
    model._original_forward = model.forward  # type: ignore[assignment] # as accelerate does
    wrapped = convert_outputs_to_fp32(torch.autocast("cpu", torch.bfloat16)(model.forward))
    model.forward = wrapped
    rounded = logits(model)

    with float32_forward(model, CPU), torch.autocast("cpu", torch.bfloat16, enabled=False):
        assert torch.equal(logits(model), exact)

    assert model.forward is wrapped
    assert torch.equal(logits(model), rounded)
    assert not torch.equal(rounded, exact)


def test_adapter_on_narrow_weights_computes_in_float32() -> None:
    base = make_model("llama", torch.bfloat16)
    model = get_peft_model(base, LoraConfig(target_modules="all-linear")).eval()
    for name, one in model.named_parameters():
        if "lora" in name:
            one.data = torch.randn(one.shape) / 10
    wide = deepcopy(model).float()

    with float32_forward(model, CPU):
        assert torch.allclose(logits(model), logits(wide), atol=1e-6, rtol=1e-5)


def test_error_inside_leaves_model_as_it_was() -> None:
    model = make_model("tied", torch.bfloat16)
    usual = logits(model)

    with pytest.raises(IndexError), float32_forward(model, CPU):
        model(input_ids=torch.tensor([[10_000]]))

    assert {one.dtype for one in model.parameters()} == {torch.bfloat16}
    assert torch.equal(logits(model), usual)
