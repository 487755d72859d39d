"""Files of other tools become recipes, and each key is accounted for."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from studio.errors import InvalidError, NotFoundError
from studio.recipe.dotted_keys import flatten
from studio.services.recipe_imports.importing import ImportedRecipe, import_text
from studio.services.recipe_imports.tools import TOOLS

EXAMPLES = Path(__file__).parent / "examples"


class Names:
    """A studio with a dataset and a model."""

    def dataset(self, name: str) -> str:
        return "alpaca" if name in ("tatsu-lab/alpaca", "alpaca") else ""

    def model(self, name: str) -> str:
        return "tiny" if name == "org/tiny" else ""


def read(name: str) -> ImportedRecipe:
    return import_text((EXAMPLES / name).read_text(encoding="utf-8"), Names())


def make(values: Mapping[str, Any], method: str = "") -> ImportedRecipe:
    return import_text(json.dumps(values), Names(), method)


def settings(imported: ImportedRecipe) -> dict[str, Any]:
    return flatten(imported.values)


def notes(imported: ImportedRecipe) -> dict[str, str]:
    return {one.key: one.note for one in (*imported.different, *imported.absent)}


LORA = {"model_name_or_path": "org/tiny", "finetuning_type": "lora"}
FULL = {"model_name_or_path": "org/tiny", "finetuning_type": "full"}
AXOLOTL = {"base_model": "org/tiny", "micro_batch_size": 2, "adapter": "lora"}
AXOLOTL_FULL = {"base_model": "org/tiny", "micro_batch_size": 2}
TRL = {"model_name_or_path": "org/tiny", "dataset_name": "alpaca"}


def test_llama_factory_example_becomes_recipe() -> None:
    imported = read("llama_factory.yaml")

    assert (imported.tool.title, imported.method.name) == ("LLaMA-Factory", "sft")
    assert {
        "adapter.r": 8,
        "adapter.lora_alpha": 16,
        "adapter.base_dtype": "bfloat16",
        "precision": "bf16",
        "data.max_length": 2048,
        "optimisation.per_device_train_batch_size": 1,
        "optimisation.gradient_accumulation_steps": 8,
        "optimisation.lr_scheduler_type": "cosine",
        "optimisation.warmup_steps": 0.1,
        "optimisation.activation_checkpointing": True,
        "optimisation.train_sampling_strategy": "random",
        "data.chat_template": "model",
    }.items() <= settings(imported).items()
    assert "dataset" not in imported.values
    assert "identity, alpaca_en_demo" in notes(imported)["dataset"]


def test_axolotl_example_becomes_recipe() -> None:
    imported = read("axolotl.yml")

    assert (imported.tool.title, imported.method.name) == ("Axolotl", "sft")
    assert {
        "dataset": "alpaca",
        "adapter.base_dtype": "nf4",
        "adapter.r": 32,
        "data.packing": True,
        "precision": "auto",
        "model.attention": "flash_attention_2",
        "evaluation.eval_steps": 1 / 16,
        "optimisation.num_train_epochs": 4.0,
    }.items() <= settings(imported).items()


def test_h2o_example_becomes_recipe() -> None:
    imported = read("h2o.yaml")

    assert (imported.tool.title, imported.method.name) == ("H2O LLM Studio", "sft")
    assert imported.name == "default-8-a10g"
    assert {
        "adapter.base_dtype": "nf4",
        "precision": "bf16",
        "data.max_length": 512,
        "adapter.lora_dropout": 0.05,
        "optimisation.warmup_steps": 0.25,
        "optimisation.max_grad_norm": 1_000_000.0,
    }.items() <= settings(imported).items()


def test_trl_example_becomes_recipe() -> None:
    imported = read("trl_dpo.yaml")

    assert (imported.tool.title, imported.method.name) == ("TRL", "dpo")
    assert {
        "preference.beta": 0.2,
        "preference.loss_type": "ipo",
        "optimisation.learning_rate": 5e-7,
        "optimisation.activation_checkpointing": True,
        # TRL's default dropout is refused: the reference would differ at random.
        "adapter.lora_dropout": 0.0,
    }.items() <= settings(imported).items()
    assert imported.remarks[0].startswith("The file does not say which command")


def test_openai_job_becomes_recipe() -> None:
    imported = read("openai.json")

    assert (imported.tool.title, imported.method.name) == ("OpenAI", "dpo")
    assert imported.name == "politer"
    assert settings(imported)["preference.beta"] == 0.2
    assert settings(imported)["optimisation.learning_rate"] == pytest.approx(1e-5)
    assert {"model", "training_file"} <= {one.key for one in imported.absent}


@pytest.mark.parametrize(
    ("values", "expected", "noted"),
    [
        # Trained weights become float32 there, unless it is pure.
        ({**FULL, "bf16": True}, "bf16", ""),
        ({**FULL, "pure_bf16": True}, "bf16_pure", ""),
        ({**FULL, "fp16": True}, "fp16", ""),
        ({**FULL, "bf16": False}, "fp32", ""),
        ({**FULL, "tf32": True}, "fp32_tf32", ""),
        ({**FULL, "bf16": True, "tf32": True}, "bf16", ""),
        ({**FULL, "fp8": True}, "fp8", ""),
        ({**LORA, "pure_bf16": True}, "bf16", "pure_bf16"),
        ({**LORA, "fp8": True}, "bf16", "fp8"),
        # Weights themselves are loaded in 16 bits there, also to be trained.
        ({**AXOLOTL, "bf16": True}, "bf16", ""),
        ({**AXOLOTL_FULL, "bf16": True}, "bf16_pure", "bf16"),
        ({**AXOLOTL_FULL, "fp16": True}, "fp16", "fp16"),
        ({**AXOLOTL_FULL, "bf16": "auto"}, "auto", "bf16"),
        ({**AXOLOTL, "bf16": "auto"}, "auto", "bf16"),
        ({**AXOLOTL_FULL, "bf16": False, "fp16": False}, "fp32", ""),
        ({**AXOLOTL_FULL, "bf16": False, "tf32": True}, "fp32_tf32", ""),
        # bfloat16 mixed is the default there, of float32 weights.
        (TRL, "bf16", ""),
        ({**TRL, "bf16": False}, "fp32", ""),
        ({**TRL, "fp16": True}, "fp16", ""),
        ({**TRL, "dtype": "bfloat16"}, "bf16_pure", "dtype"),
        ({**TRL, "torch_dtype": "bfloat16"}, "bf16_pure", "torch_dtype"),
        ({**TRL, "dtype": "auto"}, "bf16", "dtype"),
    ],
)
def test_precision_is_that_of_tool(values: dict[str, Any], expected: str, noted: str) -> None:
    imported = make(values)

    assert imported.values["precision"] == expected
    assert not noted or noted in {one.key for one in imported.different}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({**LORA, "quantization_bit": 4, "bf16": True}, "nf4"),
        ({**LORA, "quantization_bit": 8}, "int8"),
        ({**LORA, "fp16": True}, "float16"),
        ({**AXOLOTL, "load_in_4bit": True, "adapter": "qlora"}, "nf4"),
        ({**AXOLOTL, "load_in_8bit": True, "load_in_4bit": False}, "int8"),
        ({**AXOLOTL, "bf16": True}, "bfloat16"),
        ({**TRL, "use_peft": True, "load_in_4bit": True}, "nf4"),
        ({**TRL, "use_peft": True}, "float32"),
        ({**TRL, "use_peft": True, "dtype": "auto"}, "native"),
    ],
)
def test_frozen_model_has_format_of_tool(values: dict[str, Any], expected: str) -> None:
    assert make(values).values["adapter"]["base_dtype"] == expected


@pytest.mark.parametrize("bits", [2, 3, "many"])
def test_unknown_bits_are_reported(bits: object) -> None:
    imported = make({**LORA, "quantization_bit": bits})

    assert [one.key for one in imported.absent] == ["quantization_bit"]
    assert imported.values["adapter"]["base_dtype"] == "native"


@pytest.mark.parametrize(
    ("values", "method"),
    [
        ({**LORA, "stage": "pt"}, "cpt"),
        ({**LORA, "stage": "rm"}, "reward"),
        ({**LORA, "freeze_vision_tower": True}, "vision"),
        ({**AXOLOTL, "processor_type": "AutoProcessor"}, "vision"),
        ({**LORA, "stage": "kto"}, "kto"),
        ({**LORA, "stage": "ppo"}, "grpo"),
        ({**AXOLOTL, "rl": "orpo"}, "dpo"),
        ({**AXOLOTL, "rl": "grpo"}, "grpo"),
        ({**AXOLOTL, "reward_model": True}, "reward"),
        ({**AXOLOTL, "process_reward_model": True}, "prm"),
        ({**AXOLOTL, "datasets": [{"path": "alpaca", "type": "completion"}]}, "cpt"),
        ({"llm_backbone": "a", "problem_type": "text_causal_classification_modeling"}, "classify"),
        ({"llm_backbone": "a", "problem_type": "text_causal_regression_modeling"}, "regress"),
        ({"llm_backbone": "a", "dataset": {"rejected_answer_column": "b"}}, "dpo"),
        ({**TRL, "teacher_model_name_or_path": "b"}, "distil"),
        ({**TRL, "num_generations": 4}, "grpo"),
        ({**TRL, "normalize_advantages": True}, "rloo"),
        ({**TRL, "loss_type": "apo_zero_unpaired"}, "kto"),
        ({**TRL, "center_rewards_coefficient": 0.01}, "reward"),
        ({**TRL, "loss_type": "dft"}, "sft"),
        ({**TRL, "loss_type": ["apo_zero"]}, "dpo"),
    ],
)
def test_method_follows_from_file(values: dict[str, Any], method: str) -> None:
    assert make(values).method.name == method


def test_method_can_be_chosen() -> None:
    assert make(TRL, "reward").method.name == "reward"
    with pytest.raises(NotFoundError):
        make(TRL, "alchemy")


def test_orpo_adds_supervised_loss_as_the_tools_do() -> None:
    for values in ({**LORA, "stage": "dpo", "pref_loss": "orpo"}, {**AXOLOTL, "rl": "orpo"}):
        chosen = settings(make(values))
        assert (chosen["preference.loss_type"], chosen["preference.sft_weight"]) == ("orpo", 1.0)


def test_simpo_margin_is_gamma_divided_by_beta() -> None:
    values = {**LORA, "stage": "dpo", "pref_loss": "simpo", "pref_beta": 2.0, "simpo_gamma": 1.0}

    imported = make(values)

    assert settings(imported)["preference.target_margin"] == 0.5
    assert "simpo_gamma" in {one.key for one in imported.different}


def test_batches_of_answers_become_batches_of_prompts() -> None:
    values = {
        **TRL,
        "num_generations": 4,
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 3,
    }

    chosen = settings(make(values))

    assert chosen["rollouts.answers_per_prompt"] == 4
    assert chosen["optimisation.per_device_train_batch_size"] == 2
    assert chosen["optimisation.gradient_accumulation_steps"] == 3


def test_defaults_of_tool_are_used_and_named() -> None:
    imported = make({**LORA, "lora_rank": 32})

    assumed = {one.key: dict(one.settings) for one in imported.assumed}
    assert assumed["learning_rate"] == {"optimisation.learning_rate": "5e-05"}
    assert assumed["lora_alpha"] == {"adapter.lora_alpha": "64"}
    assert "lora_rank" not in assumed


def test_bad_value_is_reported_with_its_key() -> None:
    imported = make({**LORA, "lora_rank": -3, "cutoff_len": "long", "num_train_epochs": True})

    told = notes(imported)
    assert {"lora_rank", "cutoff_len", "num_train_epochs"} <= {one.key for one in imported.absent}
    assert told["lora_rank"] == "Must be between 1 and 1,024. The default is used."
    assert imported.values["adapter"]["r"] == 16


def test_setting_of_another_method_names_methods_that_have_it() -> None:
    imported = make({**LORA, "stage": "sft", "pref_loss": "hinge"})

    assert notes(imported)["pref_loss"] == (
        "Supervised has no such setting. These have it: Preference (DPO)."
    )


def test_unknown_key_is_reported() -> None:
    assert notes(make({**LORA, "warp_factor": 9}))["warp_factor"].startswith(
        "This key is not known"
    )


def test_of_two_keys_for_one_setting_one_is_used() -> None:
    imported = make({**LORA, "add_tokens": "<a>", "add_special_tokens": "<b>"})

    assert imported.values["model"]["new_tokens"] == "<b>"
    assert [one.key for one in imported.absent] == ["add_tokens"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: b\nc: d\n", "none of the tools"),
        ("- a\n- b\n", "must consist of"),
        ("a: [b\n", "Invalid YAML at line"),
        ("", "must consist of"),
        ("optimisation:\n  seed: 1\nbase_model: starter\n", "recipe of the studio"),
        ("a" * 100_001, "at most"),
        ("stage: sft\nseed: 2024-13-45\n", "A value in this file is not valid"),
        ('{"stage": "\\ud800"}', "not text"),
        ('stage: "\\ud800"', "not text"),
    ],
)
def test_wrong_file_is_refused_in_words(text: str, words: str) -> None:
    with pytest.raises(InvalidError) as caught:
        import_text(text)

    assert words in caught.value.message


def test_aliases_that_repeat_without_end_are_refused() -> None:
    lines = ["a0: &a0 [x, x]", *(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, 60))]

    for text in ("stage: sft\n" + "\n".join(lines), "stage: &a [*a]\n"):
        with pytest.raises(InvalidError) as caught:
            import_text(text)
        assert "repeat" in caught.value.message


@pytest.mark.parametrize("value", [[], [[1]], {"a": 1}, "x", -1, 0, 1e308, "nan", ".inf", True])
@pytest.mark.parametrize("tool", TOOLS.values(), ids=TOOLS)
def test_any_value_of_any_key_is_accounted_for(tool: Any, value: object) -> None:  # noqa: ANN401 -- a tool
    mark = min(key for key in tool.marks if "." not in key)
    values: dict[str, Any] = {}
    for row in tool.rows:
        *groups, leaf = row.key.split(".")
        place = values
        for group in groups:
            place = place.setdefault(group, {})
        place[leaf] = value
    values.setdefault(mark, "x")

    imported = make(values)

    listed = [one.key for one in (*imported.mapped, *imported.different, *imported.absent)]
    assert len(listed) == len(set(listed))
    assert {row.key for row in imported.tool.rows} & set(listed)


@pytest.mark.parametrize("tool", TOOLS.values(), ids=TOOLS)
def test_each_key_has_one_row(tool: Any) -> None:  # noqa: ANN401 -- a tool
    keys = [row.key for row in tool.rows]

    assert sorted(key for key in keys if keys.count(key) > 1) == []
    assert not [key for key in keys if any(other.startswith(f"{key}.") for other in keys)]
