"""The Docker image, built and used: sign in, train, stop, start again on the same volume.

Nothing here needs Docker or a registry: `buildah` builds and runs without a daemon, on a base that
`debootstrap` makes of Debian's packages. It takes about ten minutes and 15 GB, and needs root:

    make image

If pip or apt need files of this machine to reach their packages, name them in
`STUDIO_IMAGE_OPTIONS`, as options of `buildah bud`: `--volume /etc/pip.conf:/etc/pip.conf:ro`.
"""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
PROGRAMS = ("buildah", "debootstrap")
BASE = "docker.io/library/python:3.11-slim-bookworm"
PACKAGES = "python3,python3-pip,python3-venv,ca-certificates"
IMAGE = "localhost/mantissa-studio-test"
USER = 10001
URL = "http://127.0.0.1:8000"
PASSWORD = "correct horse battery"  # noqa: S105 -- opens nothing but this
BUILDAH = shutil.which("buildah") or "buildah"
BUILD_SECONDS = 3600
TRAINING_SECONDS = 600
STOPPING_SECONDS = 60

missing = [name for name in PROGRAMS if shutil.which(name) is None]
pytestmark = [
    pytest.mark.image,
    pytest.mark.timeout(BUILD_SECONDS),
    pytest.mark.skipif(bool(missing), reason=f"Not installed here: {', '.join(missing)}"),
    pytest.mark.skipif(os.geteuid() != 0, reason="Only root can build a base image"),
]


def buildah(*words: str | Path) -> str:
    command = [BUILDAH, *map(str, words)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout.strip()


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Make an image of Debian's Python under the name that the Dockerfile starts from."""
    root = tmp_path_factory.mktemp("base")
    command = ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", "bookworm", str(root)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    (root / "usr" / "local" / "bin" / "python").symlink_to("/usr/bin/python3")
    for marker in root.glob("usr/lib/python3*/EXTERNALLY-MANAGED"):
        marker.unlink()
    container = buildah("from", "scratch")
    buildah("add", "--quiet", container, root, "/")
    path = "PATH=/usr/local/bin:/usr/local/sbin:/usr/bin:/usr/sbin:/bin:/sbin"
    buildah("config", "--env", path, container)
    buildah("commit", "--quiet", "--rm", container, BASE)
    shutil.rmtree(root)
    return BASE


@pytest.fixture(scope="module", params=["web", "full"])
def image(base: str, request: pytest.FixtureRequest) -> str:
    """Build one of the images."""
    name = f"{IMAGE}:{request.param}"
    options = shlex.split(os.environ.get("STUDIO_IMAGE_OPTIONS", ""))
    # Without layers: of a stage that it has kept, buildah 1.28 forgets the files that are mounted.
    command = ("bud", "--isolation", "chroot", "--format", "docker", "--pull-never")
    buildah(*command, "--target", request.param, "--tag", name, *options, ".")
    assert base
    return name


@dataclass(slots=True)
class Container:
    """A container of the image, with a folder of this machine as its volume."""

    name: str
    home: Path
    config: dict[str, Any]

    def run(self, *words: str) -> list[str]:
        """Return the command that runs something in it, as the image's user."""
        options = ("--isolation", "chroot", "--volume", f"{self.home}:/data")
        return [BUILDAH, "run", *options, self.name, "--", *words]

    @contextmanager
    def serving(self) -> Iterator[subprocess.Popen[str]]:
        """Run the image's own command until the block ends."""
        assert not is_healthy(), f"Another studio is at {URL}."
        log = self.home.with_name("log.txt")
        script = f"echo $$ > /data/pid; exec {shlex.join(self.config['Cmd'])}"
        with log.open("w", encoding="utf-8") as out:
            process = subprocess.Popen(
                self.run("sh", "-c", script), stdout=out, stderr=out, text=True, process_group=0
            )
        try:
            wait_until(lambda: is_healthy() or process.poll() is not None, seconds=STOPPING_SECONDS)
            assert process.poll() is None, log.read_text("utf-8")
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def log(self) -> str:
        return self.home.with_name("log.txt").read_text("utf-8")

    def stop(self, process: subprocess.Popen[str]) -> int:
        """Ask the studio to end, as `docker stop` does, and return its exit status."""
        asked = getattr(signal, self.config["StopSignal"])
        os.kill(int((self.home / "pid").read_text("utf-8")), asked)
        return process.wait(STOPPING_SECONDS)


@pytest.fixture
def container(image: str, tmp_path: Path) -> Iterator[Container]:
    home = tmp_path / "volume"
    home.mkdir(mode=0o700)
    os.chown(home, USER, USER)
    name = buildah("from", "--pull-never", image)
    # What `VOLUME` declares would hide the folder that is mounted there.
    buildah("config", "--volume", "/data-", name)
    config = json.loads(buildah("inspect", "--type", "image", image))["Docker"]["config"]
    yield Container(name, home, config)
    buildah("rm", name)


def is_healthy() -> bool:
    try:
        return httpx2.get(f"{URL}/api/v1/health", timeout=2).is_success
    except httpx2.TransportError:
        return False


def sign_in(client: httpx2.Client, log: str) -> None:
    """Follow the link in the log, and become the first administrator."""
    found = re.search(r"login\?t=(\S+)", log)
    assert found, log
    assert client.get(f"/login?t={found[1]}").is_success
    form = {"t": found[1], "name": "Ann", "password": PASSWORD, "again": PASSWORD}
    assert client.post("/login/password", data=form).status_code == 303


def status_of(client: httpx2.Client) -> str:
    return str(client.get("/api/v1/runs/1").raise_for_status().json()["status"])


def test_size_is_told(image: str, capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        sys.stdout.write(f"\n{image}: {buildah('images', '--format', '{{.Size}}', image)}\n")


def test_image_runs_as_nobody_important_and_tells_its_health(container: Container) -> None:
    config = container.config
    assert (config["User"], [*config["Volumes"]]) == (str(USER), ["/data"])

    with container.serving():
        who = subprocess.run(
            container.run("id", "-u"), capture_output=True, text=True, check=True
        ).stdout.strip()
        _kind, *check = config["Healthcheck"]["Test"]
        checked = subprocess.run(container.run(*check), check=False, capture_output=True)
    assert (who, checked.returncode) == (str(USER), 0)
    assert {path.stat().st_uid for path in container.home.rglob("*")} == {USER}


def test_studio_keeps_what_it_trained_when_it_stops(image: str, container: Container) -> None:
    """Sign in, train the quick try, stop by the image's signal, start on the same volume."""
    origin = {"Origin": URL}
    with httpx2.Client(base_url=URL, headers=origin, timeout=30) as client:
        with container.serving() as process:
            sign_in(client, container.log())
            begun = client.post("/quick-start")
            assert begun.headers["location"] == "/runs/1"
            ended = {"succeeded", "failed"}
            wait_until(lambda: status_of(client) in ended, seconds=TRAINING_SECONDS)
            run = client.get("/api/v1/runs/1").json()
            assert container.stop(process) == 0

        # The web image has no packages that train, and says so.
        is_full = image.endswith(":full")
        assert run["status"] == ("succeeded" if is_full else "failed"), run["error"]
        with container.serving() as process:
            again = client.get("/api/v1/runs/1").raise_for_status().json()
            assert container.stop(process) == 0
    assert (again["status"], again["metrics"]) == (run["status"], run["metrics"])
