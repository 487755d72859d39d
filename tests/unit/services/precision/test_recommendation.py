"""What the studio says of a recipe before it starts: what it refuses, advises and plans."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from sqlmodel import Session

from studio.errors import InvalidError
from studio.hardware import Gpu, Hardware
from studio.methods import RECIPE_ADAPTER, AnyRecipe
from studio.recipe.dotted_keys import merge
from studio.recipe.precision import PRECISIONS, Precision
from studio.services.precision import recommendation
from studio.services.precision.incompatibilities import Refusal, check
from studio.services.precision.number_formats import plan_dtypes
from studio.weights import family_limits
from studio.weights.model_facts import ModelFacts
from studio.weights.rounding_error import CastRounding
from studio.weights.weight_samples import WeightDefects, WeightStats
from tests.support.factories import make_recipe
from tests.unit.weights import safetensors_folders

FULL = {"adapter": {"kind": "full"}}
HALF = {"kind": "lora", "base_dtype": "float16"}
PROCESSOR = Hardware(processor="A processor", cores=2, memory_bytes=8 * 2**30, native_bf16=True)
OLD_PROCESSOR = Hardware(processor="An old one", cores=2, memory_bytes=2**30, native_bf16=False)


def card(name: str, capability: tuple[int, int]) -> Hardware:
    gpu = Gpu(index=0, name=name, memory_bytes=16 * 2**30, capability=capability)
    return Hardware(
        processor="", cores=8, memory_bytes=0, native_bf16=False, gpus=(gpu,), torch="2.13.0+cu130"
    )


H100, T4, P100 = card("H100", (9, 0)), card("Tesla T4", (7, 5)), card("Tesla P100", (6, 0))
GTX = card("NVIDIA GeForce GTX 1650", (7, 5))


def model(
    dtype: str = "bfloat16", family: str = "llama", powers: Mapping[int, float] | None = None
) -> ModelFacts:
    return ModelFacts(
        family=family,
        declared_dtype=dtype,
        parameters=1000,
        stored={dtype: 1.0},
        linear_features=50,
        linear_parameters=1000,
        stats=WeightStats(sampled=1000, largest=1.0, exponent_shares=powers or {-6: 1.0}),
    )


def overflowing() -> ModelFacts:
    spread = WeightStats(sampled=1000, largest=70000.0, over_float16=12)
    return ModelFacts(family="llama", parameters=1000, stored={"float32": 1.0}, stats=spread)


def mixed(*layers: str) -> ModelFacts:
    stored = {"float32": 0.9, "float64": 0.1}
    cast = CastRounding(
        to="float32",
        stored=("float64",),
        weights=100,
        sampled=100,
        changed=0.5,
        max_relative_change=6e-8,
        mean_relative_change=1e-8,
    )
    return ModelFacts(
        parameters=1000, stored=stored, float64_layers=layers, casts={"float32": cast}
    )


def only_refusal(recipe: AnyRecipe, facts: ModelFacts, hardware: Hardware = H100) -> Refusal:
    (found,) = check(recipe, facts, hardware)
    return found


def repaired(recipe: AnyRecipe, found: Refusal) -> AnyRecipe:
    return RECIPE_ADAPTER.validate_python(merge(recipe.model_dump(), found.repair))


def warnings(recipe: AnyRecipe, facts: ModelFacts) -> tuple[str, ...]:
    return recommendation.recommend(recipe, facts, H100).warnings


def test_fp16_rejects_weights_beyond_float16() -> None:
    found = only_refusal(make_recipe(precision="fp16", **FULL), overflowing())

    assert (found.message, found.repair) == (
        (
            "12 of 1,000 sampled weights exceed 65,504, the largest float16 value; "
            "the largest is 70,000."
        ),
        {"precision": "bf16"},
    )


def test_frozen_float16_rejects_weights_beyond_float16() -> None:
    recipe = make_recipe(precision="bf16", adapter=HALF)
    found = only_refusal(recipe, overflowing())

    assert (found.param, found.repair) == (
        "adapter.base_dtype",
        {"adapter": {"base_dtype": "native"}},
    )


def test_bf16_accepts_weights_beyond_float16() -> None:
    assert check(make_recipe(precision="bf16"), overflowing(), H100) == []


@pytest.mark.parametrize(
    "family", [name for name, known in family_limits.FLOAT16_OVERFLOWS.items() if known.is_certain]
)
def test_overflowing_float16_family_is_rejected_with_source(family: str) -> None:
    known = family_limits.FLOAT16_OVERFLOWS[family]
    found = only_refusal(make_recipe(precision="fp16"), model(family=family))

    assert found.message == (
        f"{family} models do not train in float16: {known.reason} ({known.source})."
    )


def test_risky_float16_family_gives_warning_but_is_accepted() -> None:
    recipe = make_recipe(precision="fp16")
    facts = model("float16", family="opt")

    assert (check(recipe, facts, H100), warnings(recipe, facts)) == (
        [],
        (
            (
                "opt is risky in float16: padding gave NaN in float16 "
                "(huggingface/transformers#17433)."
            ),
        ),
    )


def test_emulated_bf16_is_rejected_with_repair() -> None:
    found = only_refusal(make_recipe(precision="bf16"), model("float16"), T4)

    assert (found.message, found.repair) == (
        (
            "bfloat16 mixed cannot be used here: it needs compute capability 8.0 or newer; "
            "Tesla T4 has 7.5, which only emulates it."
        ),
        {"precision": "fp16"},
    )


def test_repair_satisfies_all_rules_at_once() -> None:
    """On a T4 bfloat16 is missing and Gemma 3 overflows float16: float32 remains."""
    found = only_refusal(make_recipe(precision="bf16"), model(family="gemma3"), T4)

    assert found.repair == {"precision": "fp32"}


def test_float64_layers_are_named_and_rejected_in_16_bit() -> None:
    found = only_refusal(make_recipe(precision="bf16"), mixed("a", "b", "c", "d", "e"))

    assert (found.message, found.hint) == (
        (
            "a, b, c and 2 more are stored in float64 although other layers are not, and "
            "bfloat16 would lose most of their precision."
        ),
        "Use float32.",
    )


def test_float64_layers_rounded_to_float32_give_warning() -> None:
    recipe = make_recipe(precision="fp32")

    assert check(recipe, mixed("a"), H100) == []
    assert warnings(recipe, mixed("a")) == (
        "The weights are stored in several formats: 90.0 % float32, 10.0 % float64.",
        (
            "100 weights stored in float64 (a) are rounded to float32 on loading: of 100 sampled "
            "weights, 50 % change, by 1e-06 % on average and 6e-06 % at most."
        ),
    )


def test_frozen_float16_model_may_compute_in_bfloat16() -> None:
    """The adapter beside it is float32, so nothing that learns is narrow."""
    recipe = make_recipe(precision="bf16", adapter=HALF)

    assert check(recipe, model("float16"), H100) == []


def test_precision_table_excludes_untrainable_combinations() -> None:
    """float16 weights ended in NaN or in an error, and 16-bit weights bear no loss scaler."""
    halves = [one.name for one in PRECISIONS.values() if one.weights == "float16"]
    scaled = [one.weights for one in PRECISIONS.values() if one.scaler]

    assert (halves, set(scaled)) == ([], {"float32"})


@pytest.mark.parametrize(
    ("precision", "base", "clash"),
    [("bf16", "float16", "bfloat16 with float16"), ("fp16", "bfloat16", "float16 with bfloat16")],
)
def test_rwkv_rejects_mixing_16_bit_dtypes(precision: str, base: str, clash: str) -> None:
    recipe = make_recipe(precision=precision, adapter={"kind": "lora", "base_dtype": base})
    found = only_refusal(recipe, model("float32", family="rwkv"))

    assert (found.message, found.param) == (
        f"rwkv models cannot compute in {clash} weights (BlinkDL/RWKV-LM#155).",
        "adapter.base_dtype",
    )


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("adapter", ["lora", "full"])
@pytest.mark.parametrize("hardware", [PROCESSOR, OLD_PROCESSOR, H100, T4, P100])
@pytest.mark.parametrize("facts", [model(), overflowing(), mixed("a"), model(family="t5")])
def test_every_repair_resolves_its_conflict(
    precision: str, adapter: str, hardware: Hardware, facts: ModelFacts
) -> None:
    recipe = make_recipe(precision=precision, adapter={"kind": adapter})
    again = [
        check(repaired(recipe, one), facts, hardware)
        for one in check(recipe, facts, hardware)
        if one.repair
    ]
    unmended = [one for one in check(recipe, facts, hardware) if not one.repair]

    assert ([one for one in again if one], unmended) == ([], [])


@pytest.mark.parametrize(
    ("hardware", "facts", "changes", "name"),
    [
        (H100, model(), {}, "bf16"),
        (H100, model("float16"), FULL, "fp16"),
        (H100, model("float16", family="opt"), FULL, "bf16"),
        (H100, overflowing(), FULL, "bf16"),
        (PROCESSOR, model("float32"), {}, "bf16"),
        (OLD_PROCESSOR, model("float32"), {}, "fp32"),
        (T4, model("float16"), FULL, "fp16"),
        (T4, model("bfloat16"), {}, "fp16"),
        (T4, model("bfloat16"), FULL, "fp32"),
        (T4, model("float16", family="opt"), {}, "fp32"),
        (T4, overflowing(), {}, "fp32"),
        (GTX, model("float16"), {}, "fp32"),
        (P100, model("float16"), {}, "fp32"),
        (H100, mixed("a"), {}, "fp32"),
        (H100, ModelFacts(), {}, "bf16"),
    ],
)
def test_recommendation_depends_on_hardware_model_and_method(
    hardware: Hardware, facts: ModelFacts, changes: dict[str, Any], name: str
) -> None:
    assert recommendation.recommend(make_recipe(**changes), facts, hardware).mode.name == name


AMX = Hardware(processor="An AMX processor", cores=2, memory_bytes=2**30, native_bf16=True)
MAC = Hardware(processor="Apple M2", cores=8, memory_bytes=2**30, native_bf16=False, torch="2.13.0")
"""Training on Apple's GPU is not offered: torch uses the CPU."""
FAST_IN_BOTH = [
    card("NVIDIA A100-SXM4-40GB", (8, 0)),
    card("NVIDIA L4", (8, 9)),
    H100,
    card("NVIDIA GeForce RTX 3090", (8, 6)),
    card("NVIDIA GeForce RTX 4090", (8, 9)),
    card("NVIDIA GeForce RTX 5090", (12, 0)),
]
FAST_IN_FLOAT16 = [
    T4,
    card("Tesla V100-SXM2-16GB", (7, 0)),
    card("NVIDIA GeForce RTX 2080 Ti", (7, 5)),
]
FAST_IN_NEITHER = [OLD_PROCESSOR, MAC, GTX, P100]

ADVISED = [
    (FAST_IN_BOTH, "float32", "bf16", "bf16", "with float32's range"),
    (FAST_IN_BOTH, "bfloat16", "bf16", "bf16", "the weights are bfloat16"),
    (FAST_IN_BOTH, "float16", "fp16", "fp16", "bfloat16 would drop three bits of precision"),
    ([PROCESSOR, AMX], "float32", "bf16", "bf16", "with float32's range"),
    ([PROCESSOR, AMX], "bfloat16", "bf16", "bf16", "the weights are bfloat16"),
    (
        [PROCESSOR, AMX],
        "float16",
        "bf16",
        "bf16",
        "drop three bits of precision of these float16 weights",
    ),
    (FAST_IN_FLOAT16, "float32", "fp16", "fp16", "lacks bfloat16"),
    (FAST_IN_FLOAT16, "bfloat16", "fp32", "fp16", "may overflow float16"),
    (FAST_IN_FLOAT16, "float16", "fp16", "fp16", "the weights are float16"),
    (FAST_IN_NEITHER, "float32", "fp32", "fp32", "fast in neither"),
    (FAST_IN_NEITHER, "bfloat16", "fp32", "fp32", "fast in neither"),
    (FAST_IN_NEITHER, "float16", "fp32", "fp32", "fast in neither"),
]
"""Machines, the format a model was saved in, advice for full training and LoRA, and the reason."""


@pytest.mark.parametrize(
    ("hardware", "saved", "full", "lora", "reason"),
    [(one, *row) for machines, *row in ADVISED for one in machines],
    ids=lambda value: getattr(value, "title", value),
)
def test_recommendation_is_correct_for_machine_and_saved_format(
    hardware: Hardware, saved: str, full: str, lora: str, reason: str
) -> None:
    advised = {
        kind: recommendation.recommend(make_recipe(adapter={"kind": kind}), model(saved), hardware)
        for kind in ("full", "lora")
    }

    assert {kind: one.mode.name for kind, one in advised.items()} == {"full": full, "lora": lora}
    for one in advised.values():
        assert reason in one.sentence
        assert hardware.title in one.sentence
        assert one.sentence.count(". ") == 0


def test_recommendation_reason_differs_for_full_and_lora() -> None:
    whole, adapter = (
        recommendation.recommend(make_recipe(adapter={"kind": kind}), model(), T4).sentence
        for kind in ("full", "lora")
    )

    assert "keeps weights in float32 anyway, so float16 would save little memory" in whole
    assert "float32 would double the memory of the frozen model" in adapter


def test_float16_is_never_recommended_for_overflowing_family() -> None:
    found = {
        recommendation.recommend(
            make_recipe(adapter={"kind": kind}), model("float16", family=name), one
        ).mode.name
        for kind in ("full", "lora")
        for name in family_limits.FLOAT16_OVERFLOWS
        for one in [*FAST_IN_BOTH, *FAST_IN_FLOAT16]
    }

    assert found == {"bf16", "fp32"}


def test_recommendation_cites_its_evidence() -> None:
    said = recommendation.recommend(make_recipe(), model(family="gemma3"), T4).sentence

    assert said == (
        "float32: Tesla T4 lacks bfloat16, and in float16 its activations reach about 800,000, "
        "and float16 ends at 65,504 (unslothai/unsloth#4014) (weights are bfloat16, the largest "
        "sampled is 1)."
    )


def test_stalled_weights_warning_gives_share() -> None:
    recipe = make_recipe(precision="bf16_pure", optimisation={"learning_rate": 2e-5}, **FULL)
    facts = model(powers={-7: 0.846, -8: 0.1, -20: 0.054})

    assert warnings(recipe, facts) == (
        (
            "84.6 % of weights would not change at a learning rate of 2e-05 in bfloat16 "
            "throughout: choose a higher rate, or a precision that compensates for rounding."
        ),
    )


@pytest.mark.parametrize("precision", ["bf16", "bf16_dual", "bf16_stochastic", "bf16_kahan"])
def test_precisions_compensating_rounding_give_no_stall_warning(precision: str) -> None:
    recipe = make_recipe(precision=precision, optimisation={"learning_rate": 1e-6}, **FULL)

    assert warnings(recipe, model()) == ()


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        (ModelFacts(), "This model could not be checked: its files are not on this machine yet."),
        (
            ModelFacts(family="llama"),
            (
                "Only the config of this llama model is on this machine: its weights could not be "
                "checked."
            ),
        ),
        (
            ModelFacts(parameters=1, declared_dtype="float16", stored={"float32": 1.0}),
            "The config says float16, but the weights are float32: trust the weights.",
        ),
        (
            ModelFacts(parameters=9, defects=WeightDefects(not_finite={"a": 1, "b": 1})),
            (
                "2 weights of this model are NaN or infinite, in a, b: a run would fail before its "
                "first step. Download it again or choose another."
            ),
        ),
        (
            model("float16"),
            (
                "The weights are float16: computing in bfloat16 is safe but drops three bits of "
                "precision."
            ),
        ),
    ],
)
def test_unusual_model_facts_give_warning(facts: ModelFacts, said: str) -> None:
    assert warnings(make_recipe(**FULL), facts) == (said,)


def test_weights_too_small_for_frozen_float16_give_warning() -> None:
    facts = model("float32", powers={-6: 0.9, -25: 0.1})

    assert warnings(make_recipe(precision="bf16", adapter=HALF), facts) == (
        "10.0 % of the weights are too small for float16 and become zero.",
    )


def test_recurrent_family_gives_warning_in_16_bit_precision() -> None:
    recipe = make_recipe(precision="bf16_kahan", **FULL)

    assert warnings(recipe, model(family="mamba")) == (
        "mamba models need their parameters in float32 (state-spaces/mamba#6).",
    )


@pytest.mark.parametrize("mode", PRECISIONS.values(), ids=PRECISIONS)
def test_plan_total_matches_bytes_per_parameter(mode: Precision) -> None:
    """Of a full fine-tune with AdamW, the parts are what the table says of a parameter."""
    planned = plan_dtypes(make_recipe(precision=mode.name, **FULL), model())

    assert planned.sizes is not None
    assert planned.sizes.total == mode.bytes_per_parameter * 1000


def test_adapter_plan_keeps_base_model_dtype() -> None:
    planned = plan_dtypes(make_recipe(adapter={"kind": "lora", "r": 2}), model("float16"))

    assert (planned.weights, planned.trained, planned.compute, planned.trained_parameters) == (
        "float16",
        "float32",
        "bfloat16",
        100,
    )
    assert planned.sizes is not None
    assert planned.sizes.total == 1000 * 2 + 100 * (4 + 4 + 8 + 2)


def test_effective_batch_includes_gradient_accumulation() -> None:
    batches = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 8}

    assert plan_dtypes(make_recipe(optimisation=batches), model()).effective_batch == 32


def test_plan_of_unavailable_model_has_no_sizes() -> None:
    planned = plan_dtypes(make_recipe(), ModelFacts())

    assert (planned.parameters, planned.sizes) == (None, None)


def test_model_facts_are_reread_when_file_changes(tmp_path: Path) -> None:
    before = recommendation.read_model_facts(
        safetensors_folders.write(tmp_path, {"a": ("F32", [1.0])})
    )
    after = recommendation.read_model_facts(
        safetensors_folders.write(tmp_path, {"a": ("F32", [1.0, 2.0])})
    )

    assert (before.parameters, after.parameters) == (1, 2)


def test_model_facts_are_cached_while_files_are_unchanged(tmp_path: Path) -> None:
    folder = safetensors_folders.write(tmp_path, {"a": ("F32", [1.0])})

    assert recommendation.read_model_facts(folder) is recommendation.read_model_facts(folder)


def test_hub_model_not_downloaded_has_no_facts(db: Session) -> None:
    assert recommendation.load_model_facts(db, "nobody/has-this-model") == ModelFacts()


def test_invalid_hub_name_is_rejected(db: Session) -> None:
    with pytest.raises(InvalidError, match="is not a valid name on the hub"):
        recommendation.load_model_facts(db, "owner/name.git")


def test_unreadable_model_folder_is_reported(db: Session) -> None:
    with pytest.raises(InvalidError, match=r"cannot be read: File name too long\."):
        recommendation.load_model_facts(db, f"/{'a' * 300}")


@pytest.mark.parametrize(("precision", "saved"), [("fp16", "bfloat16"), ("bf16", "float16")])
def test_gpt2_on_cpu_rejects_mixing_16_bit_dtypes(precision: str, saved: str) -> None:
    recipe = make_recipe(precision=precision, adapter={"kind": "lora", "base_dtype": saved})
    found = check(recipe, model("float32", family="gpt2"), PROCESSOR)

    assert found[0].message.startswith("gpt2 models cannot compute in")
    assert found[0].repair
    assert check(recipe, model("float32", family="gpt2"), H100) == []
