"""Data sets from a hub, fetched by a chore's real process from a server that speaks as it does."""

import hashlib
import io
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from studio.data_sources import FetchLimits, FetchRequest
from studio.data_sources import HubDatasetSource as Source
from studio.protocols.events import Failed
from studio.protocols.tasks import TaskDir, TaskSpec
from studio.settings import Settings
from tests.fakes.hub_server import Files, HubServer

ROWS = b"".join(b'{"prompt": "What is %d?", "completion": "%d."}\n' % (i, i) for i in range(300))
CARD = b"""---
configs:
- config_name: english
  data_files:
  - split: train
    path: english/*.jsonl
  - split: test
    path: test.jsonl
- config_name: deutsch
  data_files: deutsch.jsonl
---
"""
FILES = {
    "README.md": CARD,
    "english/a.jsonl": ROWS,
    "english/b.jsonl": ROWS,
    "test.jsonl": ROWS[: ROWS.index(b"\n") + 1],
    "deutsch.jsonl": ROWS,
}


@pytest.fixture
def folder(tmp_path: Path) -> TaskDir:
    return TaskDir(tmp_path / "1")


def fetch(
    hub: HubServer, folder: TaskDir, token: str = "", **source: str
) -> dict[str, Any] | Failed:
    """Fetch a data set. Return what the chore has to say in the end."""
    errand = FetchRequest(
        source=Source(id=source.pop("id", "acme/rows"), **source),
        home=folder.root,
        limits=FetchLimits(bytes=10**6, row_bytes=1000),
    )
    spec = TaskSpec(kind="fetch", params=errand.model_dump(mode="json"))
    folder.root.mkdir(exist_ok=True)
    folder.job.write_text(spec.model_dump_json())
    settings = Settings(home=folder.root, hub_endpoint=hub.url, hub_token=token)
    command = (sys.executable, "-m", "studio.runner.work_main", "task", str(folder.root))
    given = settings.environment | settings.secret_environment(["hub_token"])
    environment = os.environ | given | {"HF_HOME": str(folder.root / "hf")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    last = folder.events.read()[0][-1]
    if isinstance(last, Failed):
        assert token == "" or token not in done.stdout + done.stderr
        return last
    found: dict[str, Any] = json.loads(folder.result.read_text())
    return found


def content(folder: TaskDir, told: dict[str, Any] | Failed) -> tuple[str, bytes]:
    assert isinstance(told, dict), told
    return told["filename"], (folder.files / told["file"]).read_bytes()


def members(found: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(found)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def refusal(told: dict[str, Any] | Failed) -> str:
    assert isinstance(told, Failed), told
    return told.message


def test_single_file_is_unchanged_and_its_commit_is_recorded(
    hub: HubServer, folder: TaskDir
) -> None:
    repo = hub.dataset("acme/rows", {"data/train.jsonl": ROWS, "README.md": b"# Rows"})
    first = repo.names["main"]
    repo.push({"data/train.jsonl": ROWS.upper()})
    told = fetch(hub, folder, revision=first)

    assert content(folder, told) == ("train.jsonl", ROWS)
    assert isinstance(told, dict)
    assert told["facts"] == {"commit": first, "config": "default", "split": "train"}
    assert told["sha256"] == hashlib.sha256(ROWS).hexdigest()


def test_several_files_of_split_are_combined(hub: HubServer, folder: TaskDir) -> None:
    hub.dataset("acme/rows", FILES)
    filename, rows = content(folder, fetch(hub, folder, config="english", split="train"))

    assert (filename, members(rows)) == (
        "rows-train.zip",
        {"train-00001-of-00002.jsonl": ROWS, "train-00002-of-00002.jsonl": ROWS},
    )


def test_evaluation_split_is_fetched_with_train_split(hub: HubServer, folder: TaskDir) -> None:
    hub.dataset("acme/rows", FILES)
    told = fetch(hub, folder, config="english")
    filename, found = content(folder, told)

    assert isinstance(told, dict)
    assert (filename, told["facts"]["split"]) == ("rows-train-test.zip", "train and test")
    assert members(found) == {
        "train-00001-of-00002.jsonl": ROWS,
        "train-00002-of-00002.jsonl": ROWS,
        "test.jsonl": FILES["test.jsonl"],
    }
    assert told["arrival"]["detected"]["mapping"]["split"]["kind"] == "file"


def test_files_of_mixed_formats_are_converted_to_jsonl(hub: HubServer, folder: TaskDir) -> None:
    card = b"---\nconfigs:\n- config_name: default\n  data_files: [a.jsonl, b.json]\n---\n"
    row = b'{"prompt": "a", "completion": "b"}\n'
    hub.dataset("acme/rows", {"README.md": card, "a.jsonl": row, "b.json": b"[" + row + b"]"})
    filename, found = content(folder, fetch(hub, folder))

    assert (filename, members(found)) == ("rows-train.zip", {"train.jsonl": row * 2})


def test_split_files_keep_their_format(hub: HubServer, folder: TaskDir) -> None:
    names = ("data/train.csv", "data/validation.csv", "data/test.csv")
    hub.dataset("acme/rows", {name: f"prompt,completion\na,{name}\n".encode() for name in names})
    filename, found = content(folder, fetch(hub, folder))

    assert filename == "rows-train-validation.zip"
    assert members(found) == {
        "train.csv": b"prompt,completion\na,data/train.csv\n",
        "validation.csv": b"prompt,completion\na,data/validation.csv\n",
    }


def test_split_is_selected_by_name(hub: HubServer, folder: TaskDir) -> None:
    hub.dataset("acme/rows", FILES)

    told = fetch(hub, folder, config="english", split="test")
    assert content(folder, told) == ("test.jsonl", FILES["test.jsonl"])


def test_interrupted_download_still_succeeds(hub: HubServer, folder: TaskDir) -> None:
    hub.dataset("acme/rows", {"train.jsonl": ROWS})
    hub.cuts["train.jsonl"] = 5000

    assert content(folder, fetch(hub, folder)) == ("train.jsonl", ROWS)


def test_file_with_wrong_checksum_is_rejected(hub: HubServer, folder: TaskDir) -> None:
    hub.dataset("acme/rows", {"train.jsonl": ROWS})
    hub.wrong.add("train.jsonl")

    assert refusal(fetch(hub, folder)) == "train.jsonl does not match its checksum on the hub."


def test_gated_dataset_requires_token_with_access(hub: HubServer, folder: TaskDir) -> None:
    hub.dataset("acme/rows", {"train.jsonl": ROWS}).gated = "manual"
    without = fetch(hub, folder)
    told = fetch(hub, folder, token=hub.token)

    assert isinstance(without, Failed)
    assert (without.code, without.message) == (
        "gated_model",
        "acme/rows is gated: you must accept its terms first.",
    )
    assert content(folder, told) == ("train.jsonl", ROWS)


@pytest.mark.parametrize(
    ("files", "source", "says"),
    [
        (FILES, {}, "acme/rows has several configurations."),
        (FILES, {"config": "klingon"}, "acme/rows has no configuration klingon."),
        (FILES, {"config": "english", "split": "dev"}, "acme/rows has no split dev."),
        (FILES, {"revision": "v2"}, "acme/rows has no revision v2."),
        (
            FILES,
            {"id": "acme/none"},
            "The hub has no dataset acme/none, or this studio has no access to it.",
        ),
        (
            {"rows.py": b"import os; os._exit(7)"},
            {},
            "acme/rows is built by a script, and the studio never runs code from the hub.",
        ),
        (
            {"README.md": b"---\nconfigs:\n- config_name: a\n  data_files: /etc/*\n---\n"},
            {},
            "acme/rows refers to a file outside its repository: /etc/*.",
        ),
        (
            {"train.jsonl": b"x" * 2 * 10**6},
            {},
            "The file is larger than the limit of 1 MB.",
        ),
    ],
)
def test_unavailable_dataset_fails_with_clear_message(
    hub: HubServer, folder: TaskDir, files: Files, source: dict[str, str], says: str
) -> None:
    hub.dataset("acme/rows", files)

    assert refusal(fetch(hub, folder, **source)) == says


def test_unreachable_hub_is_reported(hub: HubServer, folder: TaskDir) -> None:
    hub.url = "http://127.0.0.1:9"

    assert refusal(fetch(hub, folder)) == (
        "http://127.0.0.1:9 cannot be reached or does not respond."
    )
