"""The how-tos on Slurm, which is tried on a cluster of its own, and on Ray, checked by names."""

import json
import re
import shutil
import subprocess
from dataclasses import fields
from pathlib import Path

import pytest
import yaml

from studio.settings import Settings
from studio.worker.launchers.ray import engine as ray
from studio.worker.launchers.slurm import engine as slurm
from tests.guides.reader import Reader, blocks
from tests.support import ray_cluster, slurm_cluster
from tests.support.live_studio import Studio, free_port

pytestmark = pytest.mark.slow


def settings_in(text: str) -> set[str]:
    """Return the settings that commands set."""
    return {name.lower() for name in re.findall(r"export STUDIO_(\w+)=", text)}


def test_use_slurm(tmp_path: Path) -> None:
    serve, queue = blocks("use-slurm")
    assert settings_in(serve) <= Settings.model_fields.keys()
    if why := slurm_cluster.missing_reason():
        pytest.skip(why)
    studio = Studio(tmp_path / "home", free_port())
    reader = Reader(studio, tmp_path)
    known = (
        serve.replace("/shared/studio", str(studio.home))
        .replace("--partition=gpu", "--partition=main")
        .replace("--mem=64G", "--mem=1")
        .replace("JOB_GPUS=1", "JOB_GPUS=0")
    )
    ask = f"until curl --silent --fail {studio.url}/api/v1/health; do sleep 0.1; done"
    command = f"{known.strip()} --port {studio.port} & trap 'kill $!; wait' EXIT; {ask}"
    with slurm_cluster.run_cluster():
        assert "ok" in reader.shell(command)
        assert reader.shell(queue).split()[:2] == ["JOBID", "NAME"]
    assert "launcher" in settings_in(serve)
    assert shutil.which(slurm.COMMANDS[0])


def test_use_ray() -> None:
    start, serve, options, cluster, address = blocks("use-ray")
    assert settings_in(serve + address) <= Settings.model_fields.keys()
    assert {"launcher", "ray_address", "ray_token"} <= settings_in(serve)
    assert ray.parse_options(options) == json.loads(options)
    assert {one.name for one in fields(ray.RayEngine)} >= {"address", "token", "options"}

    made = yaml.safe_load(cluster)
    head, (group,) = made["spec"]["headGroupSpec"], made["spec"]["workerGroupSpecs"]
    assert ray.parse_version(made["spec"]["rayVersion"]) >= ray.OLDEST
    named = f"http://{made['metadata']['name']}-head-svc:8265"
    assert named in address
    paths = {
        mount["mountPath"]
        for spec in (head["template"]["spec"], group["template"]["spec"])
        for container in spec["containers"]
        for mount in container["volumeMounts"]
    }
    assert {f"STUDIO_HOME={path}" in serve for path in paths} == {True}
    if program := ray_cluster.find_program():
        known = subprocess.run(
            [program, "start", "--help"], capture_output=True, text=True, check=True
        )
        assert all(one in known.stdout for one in re.findall(r"--[a-z-]+", start))
