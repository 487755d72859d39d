"""Recipes as scripts: what is written, and what is refused."""

import ast
from pathlib import Path

import pytest
from typer.testing import CliRunner

from studio.commands import recipe_files
from studio.errors import InvalidError
from studio.recipe import yaml
from studio.services.recipe_scripts import scripts
from tests.support.factories import make_recipe

FP32 = {"precision": "fp32"}


def constants(text: str) -> dict[str, object]:
    """Return the values that stand at the top of a script."""
    nodes = (node for node in ast.parse(text).body if isinstance(node, ast.Assign))
    return {ast.unparse(node.targets[0]): ast.literal_eval(node.value) for node in nodes}


def test_script_has_settings_of_recipe() -> None:
    recipe = make_recipe(
        **FP32,
        adapter={"kind": "lora", "r": 4, "module_names": "q_proj, v_proj"},
        data={"chat_template": "chatml", "max_length": 64},
        optimisation={"learning_rate": 1e-3, "max_steps": 7},
    )

    values = constants(scripts.build(recipe, "org/model"))

    assert (values["MODEL"], values["MAX_LENGTH"]) == ("org/model", 64)
    assert values["WEIGHTS"] == "float32"
    lora = values["LORA"]
    assert isinstance(lora, dict)
    assert (lora["r"], lora["target_modules"]) == (4, ["q_proj", "v_proj"])
    arguments = values["ARGUMENTS"]
    assert isinstance(arguments, dict)
    assert {"learning_rate": 1e-3, "max_steps": 7, "bf16": False}.items() <= arguments.items()
    assert "max_minutes" not in arguments
    assert "<|im_start|>" in str(values["CHAT_TEMPLATE"])


def test_name_of_model_stays_text() -> None:
    name = "@lora@' \n@versions@"

    assert constants(scripts.build(make_recipe(**FP32), name))["MODEL"] == name


@pytest.mark.parametrize(
    "changes",
    [
        {"method": "dpo"},
        {"method": "grpo"},
        {"precision": "bf16_kahan", "adapter": {"kind": "full"}},
        {"data": {"packing": True}},
        {"optimisation": {"optim": "muon"}, "adapter": {"kind": "full"}},
        {"optimisation": {"max_minutes": 1.0}},
        {"early_stopping": {"early_stopping_patience": 1}},
        {"adapter": {"kind": "ia3"}},
        {"adapter": {"kind": "lora", "variant": "pissa"}},
        {"adapter": {"kind": "lora", "base_dtype": "nf4"}},
        {"adapter": {"kind": "lora", "lr_ratio": 16.0}},
        {"adapter": {"kind": "lora", "target_modules": "mlp"}},
        {"adapter": {"kind": "full", "trained_layers": 1}},
        {"model": {"new_tokens": "<a>"}},
        {"model": {"rope_type": "yarn"}},
    ],
    ids=str,
)
def test_what_trl_cannot_train_the_same_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(InvalidError) as caught:
        scripts.build(make_recipe(**{**FP32, **changes}), "org/model")

    assert caught.value.message.endswith(".")


def test_command_writes_script(tmp_path: Path) -> None:
    recipe, script = tmp_path / "recipe.yaml", tmp_path / "train.py"
    recipe.write_text(yaml.dump(make_recipe(**FP32)), encoding="utf-8")

    words = ["script", str(recipe), "--output", str(script), "--model", "org/model"]
    done = CliRunner().invoke(recipe_files.app, words)

    assert done.exit_code == 0, done.output
    assert constants(script.read_text(encoding="utf-8"))["MODEL"] == "org/model"
