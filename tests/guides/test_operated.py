"""How-tos on trackers, notifications, monitoring, and studios that are services."""

import json
import re
from collections.abc import Callable
from typing import Any

import httpx2
import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from studio.client import Run
from studio.trackers.table import TRACKERS
from tests.fakes.message_receivers import WebhookReceiver
from tests.guides.reader import Reader, blocks, with_numbers
from tests.support.live_studio import QUICK, ROOT, Studio, free_port
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow


def test_send_one_run(reader: Reader, done: Run) -> None:
    commands, _every, _job = blocks("send-metrics")
    known = with_numbers(commands, other_run=done.id)
    named = {"mlflow": TRACKERS["mlflow"], "tensorboard": TRACKERS["tensorboard"]}
    missing = [name for name, one in named.items() if not one.is_installed]
    for name in missing:
        known = known.replace(name, "csv")

    printed = reader.shell(known)
    used = (TRACKERS["csv"] if name in missing else one for name, one in named.items())
    assert all(one.title in printed for one in used)


def test_send_every_run(reader: Reader) -> None:
    _one, every, _job = blocks("send-metrics")
    installed = [name for name in ("tensorboard", "mlflow") if TRACKERS[name].is_installed]
    known = every.replace("tensorboard,mlflow", ",".join(["csv", *installed])).strip()
    own = Studio(reader.folder / "home", free_port())
    lives_until = f"{known} --port {own.port} & trap 'kill $!' EXIT; "
    ask = f"until curl --silent --fail {own.url}/api/v1/health; do sleep 0.1; done"

    assert "ok" in reader.shell(f"export STUDIO_HOME={own.home}; {lives_until}{ask}")


def test_job_with_a_tracker(reader: Reader) -> None:
    _one, _every, job = blocks("send-metrics")
    rows = (
        '{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]}'
    )
    before = f"""
import io, os
from openai import OpenAI
client = OpenAI(base_url=os.environ["STUDIO_URL"] + "/v1", api_key="local")
rows = io.BytesIO({rows!r}.encode() + b"\\n")
file = client.files.create(file=("rows.jsonl", rows), purpose="fine-tune")
client.files.wait_for_processing(file.id)
"""
    known = job.strip().replace('"file-1"', "file.id")
    if TRACKERS["wandb"].is_installed:
        assert reader.python(f"{before}print({known}.integrations[0].type)") == "wandb\n"
    else:
        refused = f"try:\n    {known}\nexcept Exception as error: print(error)"
        assert "pip install" in reader.python(f"{before}{refused}")


def test_be_notified(
    make_studio: Callable[[], Studio], hook: WebhookReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    example, _scrape = blocks("watch-and-be-told")
    monkeypatch.setenv("STUDIO_WEBHOOK_URL", hook.url)
    monkeypatch.setenv("STUDIO_ALLOW_INTERNAL_ADDRESSES", "true")
    studio = make_studio()
    file = studio.home / "models" / "starter" / "model.safetensors"
    weights = {name: torch.full_like(value, torch.nan) for name, value in load_file(file).items()}
    file.unlink()
    save_file(weights, file, {"format": "pt"})
    studio.api.post("/runs", json={"name": "x", "recipe": QUICK}).raise_for_status()
    wait_until(lambda: bool(hook.posted))

    assert keys(json.loads(hook.posted[0].content)) >= keys(json.loads(example)) - {"metrics.loss"}


def keys(value: dict[str, Any], above: str = "") -> set[str]:
    """Return the names of all fields, those within others after a dot."""
    found = set()
    for name, one in value.items():
        found |= {f"{above}{name}"} | (keys(one, f"{name}.") if isinstance(one, dict) else set())
    return found


def test_monitor_with_prometheus(lives: Studio) -> None:
    _example, scrape = blocks("watch-and-be-told")
    (job,) = yaml.safe_load(scrape)["scrape_configs"]
    assert job["static_configs"] == [{"targets": ["127.0.0.1:8000"]}]

    given = httpx2.get(f"{lives.url}/metrics", trust_env=False).raise_for_status().text
    assert "\nstudio_queue_length " in given


def test_run_as_a_service() -> None:
    """Its units and its proxy are tried in `tests/packaging`, its image in `tests/image`."""
    commands = "".join(blocks("run-as-a-service"))

    extras = (ROOT / "pyproject.toml").read_text("utf-8")
    assert all(f"\n{name} = [" in extras for name in re.findall(r"studio\[(\w+)\]", commands))
    files = {f"deploy/{name}" for name in re.findall(r"--file (\S+)", commands)}
    files |= set(re.findall(r"deploy/\S+", commands))
    assert len(files) == 4
    assert all((ROOT / name).is_file() for name in files)
