"""How-tos on asking, grading, serving, exporting and uploading models."""

import importlib.util
import json

import pytest

from studio.client import Run, Studio
from studio.client.schemas import Export
from studio.protocols import chat_endpoints
from tests.fakes.hub_server import HubServer
from tests.guides.reader import Reader, blocks, with_numbers
from tests.support.live_studio import Studio as LiveStudio
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow


def export_float32(client: Studio, run: Run) -> int:
    """Return the export of a run in float32, which is made once."""
    made = [one.id for one in client.runs.exports(run.id).data if one.dtype == "float32"]
    number = made[0] if made else client.runs.export(run.id, "float32", kind="merged").id
    wait_until(lambda: find_export(client, run, number).status in {"succeeded", "failed"})
    found = find_export(client, run, number)
    assert found.status == "succeeded", found
    return number


def find_export(client: Studio, run: Run, number: int) -> Export:
    return next(one for one in client.runs.exports(run.id).data if one.id == number)


def test_ask_models() -> None:
    (listed,) = blocks("ask-models")

    large, nearby = chat_endpoints.parse(listed)
    assert (large.host, nearby.host) == ("api.openai.com", "10.0.0.7")


def test_graders(reader: Reader) -> None:
    graded, program, presets = blocks("graders")

    assert reader.python(graded) == "1.0 {'right': 1.0, 'short': 1.0}\n"
    check = "print([grade({'output_text': text}, {'answer': 4}) for text in ('It is 4.', '5', '')])"
    assert reader.python(f"{program}{check}") == "[1.0, 0.0, 0.0]\n"
    reader.python(presets)


def test_run_benchmarks(reader: Reader, done: Run) -> None:
    (ask,) = blocks("run-benchmarks")

    queued = json.loads(reader.shell(with_numbers(ask, run=done.id)))
    assert queued["suite"] == "arc_easy", queued


@pytest.mark.skipif(importlib.util.find_spec("gguf") is None, reason="the extra gguf is missing")
def test_export_to_gguf(reader: Reader, client: Studio, done: Run) -> None:
    ask, ollama = blocks("export-to-gguf")

    number = json.loads(reader.shell(with_numbers(ask, run=done.id)))["id"]
    wait_until(lambda: find_export(client, done, number).status in {"succeeded", "failed"})
    found = find_export(client, done, number)
    assert found.status == "succeeded", found
    folder = reader.studio.home / "runs" / str(done.id) / "exports" / str(number)
    assert {"Modelfile", "model-Q8_0.gguf"} <= {path.name for path in folder.rglob("*")}
    assert "--file Modelfile" in ollama  # Ollama itself is not installed where tests run.


def test_upload_a_model(reader: Reader, client: Studio, done: Run, hub_server: HubServer) -> None:
    """The hub of tests has one owner, `me`."""
    commands, program = (one.replace("anna/", "me/") for one in blocks("upload-a-model"))
    make, push = with_numbers(commands, run=done.id).splitlines()
    reader.shell(make)
    newest = max(one.id for one in client.runs.exports(done.id).data)
    wait_until(lambda: find_export(client, done, newest).status in {"succeeded", "failed"})

    reader.shell(with_numbers(push, export=newest))
    name = ("model", "me/support-bot")
    wait_until(lambda: name in hub_server.repos and bool(hub_server.repos[name].messages))
    assert hub_server.repos[name].private
    printed = reader.python(with_numbers(program, run=done.id, export=newest))
    assert "me/support-bot" in printed


def test_use_a_model_elsewhere(reader: Reader, client: Studio, done: Run) -> None:
    """Neither vLLM nor MLX is installed where tests run: their commands only name the folder."""
    program, vllm, mlx = blocks("use-a-model-elsewhere")
    made = export_float32(client, done)
    files = reader.studio.home / "runs" / str(done.id) / "exports" / str(made) / "files"
    (reader.folder / "model").symlink_to(files)

    assert reader.python(program).strip()
    assert ("vllm serve model " in vllm, mlx.count("--model model ")) == (True, 2)


def test_serve_a_model(reader: Reader, client: Studio, done: Run, lives: LiveStudio) -> None:
    program, commands = blocks("serve-a-model")
    made = export_float32(client, done)
    weights = lives.home / "runs" / str(done.id) / "exports" / str(made) / "files" / "model.gguf"
    weights.write_text("{}", encoding="utf-8")

    create, listing, *rest = with_numbers(commands, run=done.id, export=made).splitlines()
    reader.shell(create)
    wait_until(lambda: "ready" in reader.shell(listing))
    assert "content=" in reader.python(program)
    reader.shell("\n".join(rest))
    assert "stopped" in reader.shell(listing)
