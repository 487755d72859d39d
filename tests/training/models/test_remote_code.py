"""A model's own code: never run unless it is what was allowed; then trained like any other."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from studio.protocols.events import Failed, Finished
from studio.protocols.run_dir import JobSpec, RunDir
from studio.weights import model_files
from tests.training import tiny

pytestmark = pytest.mark.slow

CONFIGURATION = """
import pathlib
from transformers import LlamaConfig
pathlib.Path({ran!r}).touch()

class OwnConfig(LlamaConfig):
    model_type = "own"
"""
MODELING = """
from transformers import LlamaForCausalLM
from .configuration_own import OwnConfig

class OwnForCausalLM(LlamaForCausalLM):
    config_class = OwnConfig
"""


@pytest.fixture
def ran(tmp_path: Path) -> Path:
    """Return the file that the model's code makes when it is run."""
    return tmp_path / "ran"


@pytest.fixture
def own(tmp_path: Path, ran: Path) -> Path:
    """Write a model that only loads with code of its own."""
    folder = tiny.write_model(tmp_path / "own", tiny.llama())
    wanted = {
        "AutoConfig": "configuration_own.OwnConfig",
        "AutoModelForCausalLM": "modeling_own.OwnForCausalLM",
    }
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "own", "auto_map": wanted}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "configuration_own.py").write_text(CONFIGURATION.format(ran=str(ran)))
    (folder / "modeling_own.py").write_text(MODELING)
    return folder


def train(tmp_path: Path, own: Path, allowed: str) -> RunDir:
    """Train in a process of its own; what it loads of the model's code is kept out of ours."""
    run = tiny.write_run(tmp_path / "run", own)
    spec = JobSpec.read(run).model_copy(update={"code": allowed})
    run.job.write_text(spec.model_dump_json())
    subprocess.run(
        [sys.executable, "-m", "studio.runner", str(run.root)],
        env=os.environ | {"HF_MODULES_CACHE": str(tmp_path / "modules")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    return run


@pytest.mark.smoke
def test_remote_code_does_not_run_without_consent(tmp_path: Path, own: Path, ran: Path) -> None:
    end = tiny.last_event(train(tmp_path, own, ""))

    assert isinstance(end, Failed)
    assert (end.code, ran.exists()) == ("needs_remote_code", False)


def test_allowed_remote_code_runs_and_model_trains(tmp_path: Path, own: Path, ran: Path) -> None:
    run = train(tmp_path, own, model_files.read(own).sha256)

    assert isinstance(tiny.last_event(run), Finished), tiny.last_event(run)
    assert ran.exists()
    assert len(tiny.metric_values(run, "loss")) == 3


def test_remote_code_changed_after_consent_does_not_run(
    tmp_path: Path, own: Path, ran: Path
) -> None:
    allowed = model_files.read(own).sha256
    with (own / "modeling_own.py").open("a") as file:
        file.write("# changed\n")
    end = tiny.last_event(train(tmp_path, own, allowed))

    assert isinstance(end, Failed)
    assert (end.code, ran.exists()) == ("needs_remote_code", False)


def test_remote_code_of_other_repository_does_not_run(tmp_path: Path, own: Path, ran: Path) -> None:
    config = json.loads((own / "config.json").read_text())
    config["auto_map"]["AutoModelForCausalLM"] = "evil/repo--modeling_own.OwnForCausalLM"
    (own / "config.json").write_text(json.dumps(config))
    end = tiny.last_event(train(tmp_path, own, model_files.read(own).sha256))

    assert isinstance(end, Failed)
    assert (end.code, ran.exists()) == ("needs_remote_code", False)


@pytest.mark.parametrize("name", ["_attn_implementation", "attn_implementation"])
def test_attention_kernel_named_in_config_is_not_fetched(
    tmp_path: Path, model: Path, name: str
) -> None:
    folder = tmp_path / "kernel"
    folder.mkdir()
    for path in model.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    config = json.loads((folder / "config.json").read_text()) | {name: "evil-org/kernel"}
    (folder / "config.json").write_text(json.dumps(config))
    run = train(tmp_path, folder, "")

    assert isinstance(tiny.last_event(run), Finished), tiny.last_event(run)
