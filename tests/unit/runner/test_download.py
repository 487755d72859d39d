"""Fetching a model from a hub that speaks the real one's protocol, whatever befalls it."""

from pathlib import Path
from typing import Any

import pytest

from studio.errors import DiskFullError, InvalidError, NotFoundError, UnavailableError
from studio.network.hub_client import Hub as Reader
from studio.network.hub_client import HubFile, HubModel
from studio.protocols.tasks import TaskDir
from studio.runner.tasks import download_model
from studio.weights import model_facts, model_metadata
from tests.fakes.hub_server import Files, HubServer, Repo
from tests.unit.weights import safetensors_folders

CARD = b"---\nlicense: mit\n---\n# Tiny\n"


@pytest.fixture
def chore(tmp_path: Path, hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> TaskDir:
    """Make a chore's folder, and let its process read where the hub is."""
    monkeypatch.setenv("STUDIO_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("STUDIO_HUB_ENDPOINT", hub.url)
    folder = TaskDir(tmp_path / "home" / "chores" / "1")
    folder.files.mkdir(parents=True)
    (tmp_path / "home" / "models").mkdir()
    return folder


def files(tmp_path: Path, **config: Any) -> Files:  # noqa: ANN401 -- whatever a config holds
    made = safetensors_folders.write(tmp_path / "made", {"a": ("F32", [0.5] * 50_000)}, **config)
    return {path.name: path.read_bytes() for path in made.iterdir()} | {"README.md": CARD}


def fetch(chore: TaskDir, repo: Repo, **wish: object) -> tuple[dict[str, Any], list[str]]:
    """Do the chore. Return what it came to and what it said."""
    said: list[str] = []
    params = {"repo": repo.id, "commit": repo.commit("main"), "name": repo.id} | wish
    chore.files.mkdir(exist_ok=True)
    result = download_model.download(
        chore, params, lambda words, share: said.append(f"{words} {share}")
    )
    return result, said


def test_downloaded_model_contains_only_training_files(
    chore: TaskDir, hub: HubServer, tmp_path: Path
) -> None:
    told = files(tmp_path) | {"pytorch_model.bin": b"x", "modeling.py": b"x", "a/b.json": b"{}"}
    repo = hub.model("tiny/one", told)
    result, said = fetch(chore, repo)
    folder = Path(result["location"])

    assert sorted(path.name for path in folder.iterdir()) == [
        "README.md",
        "config.json",
        "model.safetensors",
        "origin.json",
    ]
    assert folder.name == f"tiny--one-{repo.commit('main')[:12]}"
    assert model_facts.read(folder).parameters == 50_000
    assert said[-1] == "checking the files 1.0"


def test_download_keeps_requested_commit_and_records_origin(
    chore: TaskDir, hub: HubServer, tmp_path: Path
) -> None:
    repo = hub.model("tiny/one", files(tmp_path))
    first = repo.commit("main")
    repo.push(repo.commits[first] | {"README.md": b"newer"})
    result, _said = fetch(chore, repo, commit=first)
    origin = model_metadata.read_origin(Path(result["location"]))

    assert origin is not None
    assert (origin.repo, origin.commit) == ("tiny/one", first)
    assert (Path(result["location"]) / "README.md").read_bytes() == CARD


def test_interrupted_file_download_resumes_at_same_byte(
    chore: TaskDir, hub: HubServer, tmp_path: Path
) -> None:
    repo = hub.model("tiny/one", files(tmp_path))
    hub.cuts["model.safetensors"] = 70_000
    fetch(chore, repo)
    again = hub.fetched("model.safetensors")[1:]

    assert [one.range for one in again] == ["bytes=70000-"]


def test_second_attempt_downloads_only_missing_bytes(
    chore: TaskDir, hub: HubServer, tmp_path: Path
) -> None:
    repo = hub.model("tiny/one", files(tmp_path))
    content = repo.commits[repo.commit("main")]["model.safetensors"]
    (chore.files / "model.safetensors.part").write_bytes(content[:123_456])
    fetch(chore, repo)

    assert [one.range for one in hub.fetched("model.safetensors")] == ["bytes=123456-"]


def test_download_restarts_when_hub_ignores_ranges(
    chore: TaskDir, hub: HubServer, tmp_path: Path
) -> None:
    repo = hub.model("tiny/one", files(tmp_path))
    hub.ignores_ranges = True
    (chore.files / "model.safetensors.part").write_bytes(b"0" * 1000)
    result, _said = fetch(chore, repo)

    assert model_facts.read(Path(result["location"])).parameters == 50_000


def test_mismatched_partial_file_is_downloaded_again(
    chore: TaskDir, hub: HubServer, tmp_path: Path
) -> None:
    repo = hub.model("tiny/one", files(tmp_path))
    (chore.files / "model.safetensors.part").write_bytes(b"0" * 1000)
    result, _said = fetch(chore, repo)

    assert [one.range for one in hub.fetched("model.safetensors")] == ["bytes=1000-", ""]
    assert model_facts.read(Path(result["location"])).stats.largest == 0.5


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_checksum_mismatch_is_rejected(
    chore: TaskDir, hub: HubServer, tmp_path: Path, name: str
) -> None:
    repo = hub.model("tiny/one", files(tmp_path))
    hub.wrong.add(name)
    with pytest.raises(InvalidError, match=f"{name} does not match its checksum on the hub"):
        fetch(chore, repo)

    assert list((chore.root.parents[1] / "models").iterdir()) == []


def test_invalid_config_stops_download_before_weights(
    chore: TaskDir, hub: HubServer, tmp_path: Path
) -> None:
    repo = hub.model("tiny/one", files(tmp_path, num_hidden_layers=10**9))
    with pytest.raises(InvalidError, match="sets num_hidden_layers to 1000000000"):
        fetch(chore, repo)

    assert hub.fetched("model.safetensors") == []


def test_gated_model_error_explains_token(
    chore: TaskDir, hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo = hub.model("tiny/one", files(tmp_path))
    repo.gated = "manual"
    with pytest.raises(InvalidError, match="tiny/one is gated") as refused:
        fetch(chore, repo)
    assert "STUDIO_HUB_TOKEN" in refused.value.hint

    monkeypatch.setenv("HF_TOKEN", hub.token)
    result, _said = fetch(chore, repo)
    assert result["repo"] == "tiny/one"


def test_hub_token_is_sent_only_to_hub(
    chore: TaskDir, hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo = hub.model("tiny/one", files(tmp_path), private=True)
    repo.private = True
    monkeypatch.setenv("STUDIO_HUB_TOKEN", hub.token)
    fetch(chore, repo)

    assert {one.token for one in hub.asked if "/stored/" in one.path} == {""}
    assert hub.token not in "".join(
        path.read_text(errors="replace") for path in tmp_path.rglob("*") if path.is_file()
    )


def test_deleted_model_raises_not_found(chore: TaskDir, hub: HubServer, tmp_path: Path) -> None:
    repo = hub.model("tiny/one", files(tmp_path))
    del hub.repos["model", "tiny/one"]
    with pytest.raises(NotFoundError, match="has no tiny/one, or this studio has no access to it"):
        fetch(chore, repo)


def test_model_without_safetensors_is_rejected(chore: TaskDir, hub: HubServer) -> None:
    repo = hub.model("old/one", {"config.json": b"{}", "pytorch_model.bin": b"x" * 10})
    with pytest.raises(InvalidError, match="its weights are pickled"):
        fetch(chore, repo)


def test_insufficient_disk_space_is_rejected_before_download(
    chore: TaskDir, hub: HubServer
) -> None:
    repo = hub.model("big/one", {"config.json": b"{}", "model.safetensors": b"x"})
    told = HubModel(id=repo.id, files=(HubFile(name="model.safetensors", size=2**60),))
    with pytest.raises(DiskFullError, match=r"1,152,921,504\.6 GB"):
        download_model.refuse_if_disk_full(chore.files, list(told.files))


def test_unresponsive_hub_is_abandoned_after_retries(
    chore: TaskDir, hub: HubServer, tmp_path: Path
) -> None:
    repo = hub.model("tiny/one", files(tmp_path))
    asked = Reader(endpoint=hub.url)
    found = asked.model_info(repo.id)
    waited: list[float] = []
    asked = Reader(endpoint="http://127.0.0.1:9")
    fetching = download_model.Downloader(
        asked, found, found.commit, chore.files, lambda *_: None, pause=waited.append
    )
    with pytest.raises(UnavailableError, match="keeps interrupting the download of"):
        fetching.download_all(list(found.files))
    assert waited == [1, 3, 7, 15]


def test_model_code_is_downloaded_only_on_request(
    chore: TaskDir, hub: HubServer, tmp_path: Path
) -> None:
    own = {"auto_map": {"AutoConfig": "own.Own"}}
    repo = hub.model("tiny/one", files(tmp_path, **own) | {"own.py": b"1", "setup.txt": b"1"})
    result, _said = fetch(chore, repo)
    folder = Path(result["location"])
    assert (list(folder.glob("*.py")), hub.fetched("own.py")) == ([], [])

    again, _said = fetch(chore, repo, code=True)
    assert [path.name for path in folder.glob("*.py")] == ["own.py"]
    assert again["code"] != result["code"]


def test_oversized_code_is_rejected_before_download(
    chore: TaskDir, hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("studio.weights.model_files.MAX_CODE_BYTES", 10)
    repo = hub.model("tiny/one", files(tmp_path) | {"a.py": b"1", "own.py": b"1" * 11})
    with pytest.raises(InvalidError, match=r"own\.py is unreasonably large"):
        fetch(chore, repo, code=True)

    assert (hub.fetched("a.py"), hub.fetched("own.py")) == ([], [])


def test_existing_model_is_not_downloaded_again(
    chore: TaskDir, hub: HubServer, tmp_path: Path
) -> None:
    repo = hub.model("tiny/one", files(tmp_path))
    first, _said = fetch(chore, repo)
    count = len(hub.fetched("model.safetensors"))
    second, _said = fetch(chore, repo)

    assert (second, len(hub.fetched("model.safetensors"))) == (first, count)
