"""Uploading a model to a hub that speaks the real one's protocol, whatever befalls it."""

import hashlib
from pathlib import Path
from typing import Any

import pytest

from studio.errors import ConflictError, InvalidError, UnavailableError
from studio.protocols.tasks import TaskDir
from studio.runner.tasks import push_model
from tests.fakes.hub_server import HubServer

# The hub's client sends files as httpx2 would rather not have them sent.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")

WEIGHTS = {f"model-{part}.safetensors": bytes([part]) * 300_000 for part in (1, 2)}
SMALL = {"README.md": b"# Mine\n", "config.json": b"{}", "1_Pooling/config.json": b"{ }"}
SHAS = {name: hashlib.sha256(content).hexdigest() for name, content in WEIGHTS.items()}


@pytest.fixture
def folder(tmp_path: Path, hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make an export, and let the process read where the hub is and what opens it."""
    monkeypatch.setenv("STUDIO_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("STUDIO_HUB_ENDPOINT", hub.url)
    monkeypatch.setenv("STUDIO_HUB_TOKEN", hub.token)
    for name, content in {**WEIGHTS, **SMALL}.items():
        path = tmp_path / "export" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return tmp_path / "export"


def push(folder: Path, repo: str = "me/mine", **wish: object) -> tuple[dict[str, Any], list[str]]:
    """Do the task. Return its result and what it said."""
    said: list[str] = []
    params = {"folder": str(folder), "repo": repo, "message": "Add it"} | wish
    result = push_model.push(
        TaskDir(folder.parent), params, lambda words, share: said.append(f"{words} {share}")
    )
    return result, said


def test_all_files_are_in_one_commit_of_a_private_repository(folder: Path, hub: HubServer) -> None:
    result, said = push(folder)
    repo = hub.repos["model", "me/mine"]

    assert repo.private
    assert repo.names["main"] == result["revision"]
    assert repo.commits[result["revision"]].items() >= {**WEIGHTS, **SMALL}.items()
    assert repo.messages == ["Add it"]
    assert result["url"] == f"{hub.url}/me/mine/tree/{result['revision']}"
    assert result["bytes"] == sum(map(len, (*WEIGHTS.values(), *SMALL.values())))
    assert said[0] == "contacting the hub None"
    assert "uploaded 0.6 MB of 0.6 MB 1.0" in said
    assert said[1] == "checking the files None"
    shares = [float(line.rpartition(" ")[2]) for line in said[2:]]
    assert shares == sorted(shares)
    assert len({share for share in shares if 0 < share < 1}) > 3


def test_public_repository_is_made_only_on_request(folder: Path, hub: HubServer) -> None:
    push(folder, private=False)

    assert not hub.repos["model", "me/mine"].private


def test_second_push_of_the_same_files_changes_nothing(folder: Path, hub: HubServer) -> None:
    first, _said = push(folder)
    second, _said = push(folder)

    assert second["revision"] == first["revision"]
    assert len(hub.uploads.sent) == len(WEIGHTS)
    assert len(hub.repos["model", "me/mine"].messages) == 1


def test_only_changed_files_are_sent_again(folder: Path, hub: HubServer) -> None:
    first, _said = push(folder)
    changed = bytes(300_000)
    (folder / "model-2.safetensors").write_bytes(changed)
    second, _said = push(folder)
    repo = hub.repos["model", "me/mine"]

    assert hub.uploads.sent == [*SHAS.values(), hashlib.sha256(changed).hexdigest()]
    assert repo.commits[second["revision"]]["model-2.safetensors"] == changed
    assert repo.commits[first["revision"]]["model-2.safetensors"] == WEIGHTS["model-2.safetensors"]


def test_other_files_of_the_repository_stay(folder: Path, hub: HubServer) -> None:
    hub.model("me/mine", {"notes.txt": b"mine"}).private = True
    result, _said = push(folder)

    assert hub.repos["model", "me/mine"].commits[result["revision"]]["notes.txt"] == b"mine"


def test_very_large_file_is_sent_in_parts(folder: Path, hub: HubServer) -> None:
    hub.uploads.part_bytes = 100_000
    result, _said = push(folder)

    assert hub.repos["model", "me/mine"].commits[result["revision"]].items() >= WEIGHTS.items()


@pytest.mark.parametrize("part_bytes", [0, 100_000], ids=["whole", "in parts"])
@pytest.mark.parametrize("sent", [0, 1, 65_536, 99_999])
def test_broken_connection_is_tried_again(
    folder: Path, hub: HubServer, sent: int, part_bytes: int
) -> None:
    hub.uploads.part_bytes, hub.uploads.cut_after = part_bytes, sent
    result, _said = push(folder)

    assert hub.uploads.cut_after is None
    assert hub.repos["model", "me/mine"].commits[result["revision"]].items() >= WEIGHTS.items()


def test_failed_push_resumes_with_the_files_that_are_missing(folder: Path, hub: HubServer) -> None:
    hub.uploads.refused = "The disk quota is used up."
    with pytest.raises(UnavailableError) as caught:
        push(folder)
    assert caught.value.message == "127.0.0.1 refused the upload: The disk quota is used up."

    hub.uploads.refused = ""
    result, _said = push(folder)
    assert hub.uploads.sent == [*SHAS.values()]
    assert hub.repos["model", "me/mine"].commits[result["revision"]].items() >= WEIGHTS.items()


def test_private_push_to_a_public_repository_is_refused(folder: Path, hub: HubServer) -> None:
    hub.model("me/mine", {"README.md": b"old"})

    with pytest.raises(ConflictError, match="public already"):
        push(folder)
    assert hub.uploads.sent == []
    assert push(folder, private=False)[0]["revision"]


@pytest.mark.parametrize(
    ("repo", "token"), [("others/mine", ""), ("me/mine", "hf_wrong"), ("me/mine", "-")]
)
def test_who_may_not_write_is_told_what_to_do(
    folder: Path, hub: HubServer, monkeypatch: pytest.MonkeyPatch, repo: str, token: str
) -> None:
    if token:
        monkeypatch.setenv("STUDIO_HUB_TOKEN", token.strip("-"))

    with pytest.raises(InvalidError) as caught:
        push(folder, repo)
    assert caught.value.message == f"127.0.0.1 does not let this studio write to {repo}."
    assert "write access" in caught.value.hint
    assert hub.token not in caught.value.message + caught.value.hint


def test_unreachable_hub_is_told_plainly(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STUDIO_HUB_ENDPOINT", "http://127.0.0.1:9")

    with pytest.raises(UnavailableError, match=r"The connection to 127\.0\.0\.1 broke"):
        push(folder)


def test_links_are_not_followed(folder: Path, hub: HubServer, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    (folder / "link.txt").symlink_to(tmp_path / "secret")
    result, _said = push(folder)

    assert "link.txt" not in hub.repos["model", "me/mine"].commits[result["revision"]]
