"""A disk that is really full: a small one of memory, filled to its last block while a studio lives.

What people read is a sentence, what was acknowledged stays, and with room all goes on.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.support.live_studio import Studio, get_run, metric_steps, stop_everything, submit_run
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.faults,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount the small disk"),
    pytest.mark.skipif(not shutil.which("mount"), reason="there is no mount on this machine"),
]

MOUNT, UNMOUNT = (shutil.which(name) or "" for name in ("mount", "umount"))
CREATED = httpx2.codes.CREATED
SIZE = "28m"
LARGER = "80m"
BLOCK = 64 * 1024
FULL = "The disk is full; nothing was saved."


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a disk of memory."""
    place = tmp_path / "disk"
    place.mkdir()
    options = ["-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(place)]
    mounted = subprocess.run([MOUNT, *options], capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"no small disk can be mounted here: {mounted.stderr.strip()}")
    yield place
    subprocess.run([UNMOUNT, "--lazy", str(place)], check=True)


@pytest.fixture
def studio(disk: Path, starter_home: Path) -> Iterator[Studio]:
    made = Studio.copied(starter_home, disk / "home")
    made.start()
    yield made
    stop_everything(made)


def fill(disk: Path) -> Path:
    """Leave not a byte. Return the file to delete for room. Call it again where room came back."""
    ballast = disk / "ballast"
    with ballast.open("ab", buffering=0) as file:
        for size in (BLOCK, 1):
            try:
                while file.write(b"x" * size) == size:
                    pass
            except OSError:
                continue
    return ballast


def upload(studio: Studio, name: str, rows: int) -> httpx2.Response:
    text = "".join(
        f'{{"prompt": "{name} {row}?", "completion": "{row}."}}\n' for row in range(rows)
    )
    return studio.api.post("/datasets", files={"file": (f"{name}.jsonl", text.encode())})


def post(studio: Studio, address: str) -> httpx2.Response:
    return httpx2.post(address, headers={"Origin": studio.url}, trust_env=False)


def error_of(answer: httpx2.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["message"]


def named(studio: Studio) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in studio.api.get("/datasets").json()["data"]}


def read_again(studio: Studio, disk: Path) -> None:
    """Read again, on a larger disk, each file that was kept and had no room for its rows.

    A file that takes a second to read is kept first and read later, by a process of its own.
    """
    subprocess.run([MOUNT, "-o", f"remount,size={LARGER}", str(disk)], check=True)
    wait_until(lambda: "building" not in {one["status"] for one in named(studio).values()})
    for dataset in named(studio).values():
        if dataset["status"] == "failed":
            chore = studio.api.get(f"/chores/{dataset['chore']}").raise_for_status().json()
            # Without room, the studio may not even be able to follow the process that reads.
            assert chore["error"]["code"] in {"disk_full", "not_followed"}
            studio.api.post(f"/chores/{dataset['chore']}/again").raise_for_status()
    wait_until(lambda: {one["status"] for one in named(studio).values()} == {"ready"})


def test_uploads_work_until_disk_is_full_and_after_space_is_freed(
    studio: Studio, disk: Path
) -> None:
    kept: dict[str, int] = {}
    while (answer := upload(studio, f"data-{len(kept)}", rows=20_000)).status_code == CREATED:
        kept[answer.json()["name"]] = 20_000
    ballast = fill(disk)
    while (refused := upload(studio, f"small-{len(kept)}", rows=10)).status_code == CREATED:
        kept[refused.json()["name"]] = 10
        fill(disk)  # A chore that ended has given back its scratch files.

    assert error_of(answer) == error_of(refused) == (507, FULL)
    assert len(kept) > 0
    assert set(named(studio)) == {"starter", *kept}
    ballast.unlink()
    assert upload(studio, "at-last", rows=10).status_code == CREATED
    read_again(studio, disk)
    assert {name: named(studio)[name]["train_rows"] for name in kept} == kept


def test_full_disk_shows_error_and_pages_still_load(studio: Studio, disk: Path) -> None:
    number = submit_run(studio, max_steps=1)
    wait_until(lambda: get_run(studio, number)["status"] == "succeeded")
    fill(disk)
    address = f"{studio.url}/runs/{number}"

    while (again := post(studio, f"{address}/again")).is_redirect:
        fill(disk)  # A chore that ended has given back its scratch files.

    assert (again.status_code, FULL in again.text) == (507, True)
    assert httpx2.get(address, trust_env=False).status_code == httpx2.codes.OK


def test_run_fails_clearly_on_full_disk_and_later_run_succeeds(studio: Studio, disk: Path) -> None:
    number = submit_run(studio, max_steps=100_000)
    waiting = submit_run(studio, max_steps=1)
    wait_until(lambda: get_run(studio, number)["step"] >= 3)
    ballast = fill(disk)
    seen = metric_steps(studio, number)
    wait_until(lambda: not is_training(studio, number))
    ballast.unlink()
    wait_until(lambda: get_run(studio, number)["status"] == "failed")

    error = get_run(studio, number)["error"]
    assert (error["code"], error["message"], error["hint"]) == (
        "disk_full",
        "The disk is full.",
        "Delete old runs or models, then try again.",
    )
    assert metric_steps(studio, number)[: len(seen)] == seen
    wait_until(lambda: get_run(studio, waiting)["status"] in {"succeeded", "failed"})
    assert (get_run(studio, waiting)["error"] or {"code": "disk_full"})["code"] == "disk_full"
    second = submit_run(studio, max_steps=1)
    wait_until(lambda: get_run(studio, second)["status"] == "succeeded")


def is_training(studio: Studio, number: int) -> bool:
    """Whether a process still works in the run's folder."""
    folder = str(studio.home / "runs" / str(number)).encode()
    return any(folder in path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline"))
