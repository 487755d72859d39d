"""The unmodified `openai` package runs against a studio: the newest major, and the oldest.

One server and one training serve both: what the newest has trained, the oldest asks, too.
"""

import fcntl
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.live_studio import ROOT, Studio, stop_everything
from tests.support.vision_models import write_vision_model

pytestmark = pytest.mark.slow

OLDEST = "1.109.1"
MODULES = (ROOT / "tests" / "openai" / f"{name}.py" for name in ("client", "reinforcement"))
CHECKS = [
    check
    for module in MODULES
    for check in re.findall(r"^def (check_\w+)", module.read_text(encoding="utf-8"), re.MULTILINE)
]


@dataclass(slots=True)
class Clients:
    """What each client has found, asked the first time somebody wants to know."""

    studio: Studio
    model: str = ""
    found: dict[str, dict[str, str]] = field(default_factory=dict)

    def problem(self, which: str, check: str) -> str:
        """Return what went wrong in a check, or nothing."""
        if which not in self.found:
            self.found[which] = self._ask(which)
        return self.found[which].get(check, "It was not run.")

    def _ask(self, which: str) -> dict[str, str]:
        done = self.run("client", which)
        told = [json.loads(line) for line in done.splitlines()]
        self.model = told[-1]["model"]
        return {one["check"]: one["problem"] for one in told}

    def run(self, module: str, which: str) -> str:
        """Run a module of this folder with a client, and return what it prints."""
        packages = {"PYTHONPATH": str(oldest())} if which == "oldest" else {}
        done = subprocess.run(
            [sys.executable, "-m", f"tests.openai.{module}"],
            cwd=ROOT,
            env=os.environ
            | {"STUDIO_URL": self.studio.url, "STUDIO_MODEL": self.model, "NO_PROXY": "127.0.0.1"}
            | packages,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


def oldest() -> Path:
    """Return a folder with the oldest client and what it needs, fetched once."""
    folder = ROOT / ".cache" / f"openai-{OLDEST}"
    folder.parent.mkdir(exist_ok=True)
    with (folder.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            fetched = folder.with_name(f"{folder.name}.new")
            install = ("-m", "pip", "install", "--quiet", "--upgrade", "--target", str(fetched))
            subprocess.run([sys.executable, *install, f"openai=={OLDEST}"], check=True)
            fetched.rename(folder)
    return folder


@pytest.fixture(scope="module")
def clients(starter_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clients]:
    folder = tmp_path_factory.mktemp("openai") / "home"
    studio = Studio.copied(starter_home, folder)
    llava = write_vision_model(folder.parent / "llava", "llava")
    # Room for a model to answer while a run trains, so that it need not be loaded each time.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STUDIO_SLOTS", "2")
        studio.start()
    source = {"kind": "folder", "path": str(llava)}
    added = studio.api.post("/models", json={"name": "llava", "source": source})
    added.raise_for_status()
    yield Clients(studio)
    stop_everything(studio)


def test_readme_script_works(clients: Clients, tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (script,) = re.findall(r"```py\n(.*?)```", text, re.DOTALL)
    rows = [{"prompt": f"Say {i}", "completion": f"{i}."} for i in range(24)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = subprocess.run(
        [sys.executable, "-c", script.replace("http://127.0.0.1:8000", clients.studio.url)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    # What so short a training teaches may be to say nothing: its line is printed all the same.
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("\n")


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("which", [pytest.param("newest", marks=pytest.mark.smoke), "oldest"])
def test_openai_client_checks_pass(clients: Clients, which: str, check: str) -> None:
    assert clients.problem(which, check) == ""


@pytest.mark.parametrize("which", ["newest", "oldest"])
def test_clients_read_vectors(clients: Clients, which: str) -> None:
    assert clients.run("vectors", which) == ""


@pytest.mark.parametrize("which", ["newest", "oldest"])
def test_clients_ask_about_images(clients: Clients, which: str) -> None:
    assert clients.run("images", which) == ""
