"""A studio with a run that has ended, on a hub of its own, for all how-tos."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from studio import starter
from studio.client import Run
from studio.client import Studio as Client
from tests.fakes.hub_server import HubServer, run_hub_server
from tests.guides.reader import Reader
from tests.support import served_exports, template_homes
from tests.support.live_studio import QUICK, Studio, stop_everything

ROWS = "".join(
    json.dumps({"prompt": f"What is {one} plus 1?", "completion": str(one + 1)}) + "\n"
    for one in range(40)
)

postgres = template_homes.postgres


@pytest.fixture(scope="session")
def hub_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubServer]:
    folder = tmp_path_factory.mktemp("hub-model")
    starter.write_model(folder)
    with run_hub_server() as hub:
        hub.dataset("owner/name", {"data/train.jsonl": ROWS.encode()})
        files = (path for path in folder.iterdir() if path.is_file())
        hub.model("owner/name", {path.name: path.read_bytes() for path in files})
        yield hub


@pytest.fixture(scope="session")
def lives(
    starter_home: Path, hub_server: HubServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Studio]:
    folder = tmp_path_factory.mktemp("guides")
    studio = Studio.copied(starter_home, folder / "home")
    known = {
        "STUDIO_HUB_ENDPOINT": hub_server.url,
        "STUDIO_HUB_TOKEN": hub_server.token,
        "STUDIO_IMPORT_FOLDERS": str(folder),
        "STUDIO_LLAMA_SERVER": str(served_exports.write_program(folder / "bin")),
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in known.items():
            patch.setenv(name, value)
        studio.start()
    yield studio
    stop_everything(studio)


@pytest.fixture
def reader(lives: Studio, tmp_path: Path) -> Reader:
    return Reader(lives, tmp_path)


@pytest.fixture(scope="session")
def client(lives: Studio) -> Iterator[Client]:
    with Client(lives.url) as client:
        yield client


@pytest.fixture(scope="session")
def done(client: Client) -> Run:
    """Return a run that has succeeded."""
    run = client.runs.wait(client.runs.submit("quick", QUICK).id)
    assert run.status == "succeeded", run.error
    return run
