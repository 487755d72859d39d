"""What is said of attention before a run starts: refusals with repairs."""

from dataclasses import replace

import pytest

from studio.hardware import Gpu, Hardware
from studio.recipe.attention import AttentionName
from studio.services.precision.incompatibilities import Refusal, check
from studio.weights.model_facts import ModelFacts
from tests.support.factories import make_recipe
from tests.unit.services.precision.test_lora_variants import MODEL
from tests.unit.services.precision.test_quantised import HERE

AUTOMATIC = {"model": {"attention": "automatic"}}


def on_gpu(capability: tuple[int, int], *packages: str) -> Hardware:
    gpu = Gpu(index=0, name="GPU", memory_bytes=2**36, capability=capability)
    return replace(HERE, gpus=(gpu,), packages=frozenset(packages), torch="2.13.0+cu130")


def refusals(
    attention: AttentionName,
    hardware: Hardware = HERE,
    facts: ModelFacts = MODEL,
    precision: str = "bf16",
) -> list[Refusal]:
    asked = make_recipe(precision=precision, model={"attention": attention})
    return check(asked, facts, hardware)


@pytest.mark.parametrize(
    ("hardware", "message"),
    [
        (HERE, "needs an NVIDIA GPU; on this machine, runs train on the CPU"),
        (on_gpu((9, 0)), "needs the package flash_attn, which is not installed"),
        (on_gpu((7, 5), "flash_attn"), "needs a GPU of the Ampere generation or newer"),
    ],
    ids=["cpu", "no package", "old gpu"],
)
def test_flash_attention_is_refused_where_it_cannot_run(hardware: Hardware, message: str) -> None:
    (refusal,) = refusals("flash_attention_2", hardware, precision="fp16")

    assert refusal.message == f"FlashAttention 2 cannot be used here: it {message}."
    assert refusal.repair == AUTOMATIC


def test_flash_attention_computes_in_16_bits_only() -> None:
    here = on_gpu((9, 0), "flash_attn")
    (refusal,) = refusals("flash_attention_2", here, precision="fp32")

    assert "has no kernels for float32" in refusal.message
    assert refusal.repair == AUTOMATIC
    assert refusals("flash_attention_2", here) == []


def test_sdpa_is_refused_for_families_that_softcap_scores() -> None:
    softcapped = replace(MODEL, family="gemma2")
    (refusal,) = refusals("sdpa", facts=softcapped)

    assert "softcap their attention scores" in refusal.message
    assert refusals("eager", facts=softcapped) == refusals("sdpa") == []
