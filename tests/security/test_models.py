"""Models as an attacker packs them, looked at before anything of them is loaded."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from studio.errors import InvalidError
from studio.weights import model_config, model_files, safetensors_headers
from studio.weights.safetensors_headers import WEIGHTS_FILE
from tests.security.raw_requests import Target
from tests.unit.weights import safetensors_folders

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("weights")


ABSURD = (
    st.integers(min_value=2**31)
    | st.integers(max_value=-2)
    | st.sampled_from([1e10, float("nan"), float("inf"), True, "8; import os", "(a+)+$"])
)


@settings(max_examples=50, deadline=None)
@given(
    name=st.sampled_from(sorted(model_config.MAX_VALUES)),
    value=ABSURD,
    inside=st.lists(st.sampled_from(["text_config", "llm_config", "any"]), max_size=3),
)
def test_absurd_config_value_is_rejected_before_loading(
    name: str, value: object, inside: list[str]
) -> None:
    config: dict[str, Any] = {name: value}
    for part in inside:
        config = {part: config}

    with pytest.raises(InvalidError):
        model_config.check({"model_type": "llama"} | config)


@settings(max_examples=50, deadline=None)
@given(
    family=st.builds(
        "{}{}{}".format, st.text(max_size=5), st.sampled_from("\n\r;:'\"()[]{} \x00/"), st.text()
    )
    | st.sampled_from(["llama\nimport os", "__import__('os')", "../x", "x" * 65]),
    inside=st.booleans(),
)
def test_model_type_containing_code_is_rejected(family: str, *, inside: bool) -> None:
    config = {"model_type": family}

    with pytest.raises(InvalidError):
        model_config.check({"model_type": "llama", "text_config": config} if inside else config)


@settings(max_examples=50, deadline=None)
@given(
    length=st.integers(0, 2**64 - 1) | st.sampled_from([2**60, 2**63, 99 * 2**20]),
    body=st.binary(max_size=200)
    | st.recursive(
        st.none() | st.integers() | st.text(max_size=5),
        lambda one: (
            st.lists(one, max_size=3) | st.dictionaries(st.text(max_size=9), one, max_size=3)
        ),
        max_leaves=8,
    ).map(lambda value: json.dumps({"a": value}).encode()),
    is_true=st.booleans(),
)
def test_arbitrary_safetensors_header_is_read_or_rejected(
    folder: Path, length: int, body: bytes, *, is_true: bool
) -> None:
    path = folder / WEIGHTS_FILE
    path.write_bytes((len(body) if is_true else length).to_bytes(8, "little") + body)
    try:
        found = safetensors_headers.read_tensors(path)
    except InvalidError:
        return

    assert all(one.start <= path.stat().st_size for one in found)


@pytest.mark.parametrize("cut", [1, 2, 31, 32, 33, 200])
def test_truncated_weights_are_rejected(tmp_path: Path, cut: int) -> None:
    folder = safetensors_folders.write(tmp_path, {"a": ("F32", [1.0] * 8)})
    whole = (folder / WEIGHTS_FILE).read_bytes()
    (folder / WEIGHTS_FILE).write_bytes(whole[:-cut])

    with pytest.raises(InvalidError):
        safetensors_headers.read_tensors(folder / WEIGHTS_FILE)


@pytest.mark.parametrize(
    "name", ["pytorch_model.bin", "adapter_model.bin", "optimizer.pt", "training_args.bin", "x.pkl"]
)
def test_pickle_files_are_not_downloaded(name: str) -> None:
    offered = ["config.json", "model.safetensors", "tokenizer.json", name]

    assert sorted(model_files.files_to_download(offered)) == sorted(offered[:3])


def test_kernels_package_is_not_required() -> None:
    pins = (ROOT / "constraints.txt").read_text().split()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    assert [one for one in pins if one.startswith("kernels=")] == []
    assert "kernels" not in str(
        project["dependencies"] + [*project["optional-dependencies"].values()]
    )


@pytest.mark.parametrize(
    ("knob", "value"), [("r", 10**9), ("r", -1), ("target_modules", "(a+)+$"), ("r", True)]
)
def test_invalid_adapter_settings_are_rejected(place: Target, knob: str, value: object) -> None:
    adapter = {"kind": "lora", knob: value}
    recipe = {"base_model": "starter", "dataset": "starter", "adapter": adapter}
    answer = place.client.post("/api/v1/runs", json={"name": "x", "recipe": recipe})

    assert (answer.status_code, answer.json()["error"]["param"]) == (
        422,
        f"recipe.adapter.{knob}",
    )
