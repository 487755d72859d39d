"""A name that leads to the internet when it is checked, and inside when it is asked again."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.security.rebinding_client import INSIDE, PUBLIC, ROWS
from tests.support.live_studio import ROOT

_ALONE = """
set -e
mount --bind "$1/resolv.conf" /etc/resolv.conf
mount --bind "$1/nsswitch.conf" /etc/nsswitch.conf
ip address add "$0"/32 dev lo
ip link set lo up
shift
exec "$@"
"""
"""A network and name server of its own, so that an address of the internet is on this machine."""


@pytest.fixture
def alone(tmp_path: Path) -> tuple[str, ...]:
    (tmp_path / "resolv.conf").write_text(f"nameserver {INSIDE}\n")
    (tmp_path / "nsswitch.conf").write_text("hosts: dns\n")
    unshare = shutil.which("unshare")
    made = (unshare or "", "-rnm", "sh", "-c", _ALONE, PUBLIC, str(tmp_path))
    if not unshare or subprocess.run([*made, "true"], capture_output=True, check=False).returncode:
        pytest.skip("This machine lets nobody make a network.")
    return made


def visit(alone: tuple[str, ...], name: str, folder: Path) -> dict[str, Any]:
    command = [*alone, sys.executable, "-m", "tests.security.rebinding_client", name, str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


@pytest.mark.parametrize(
    ("name", "said", "reached"),
    [
        ("fetch", ROWS.decode(), f"{PUBLIC} /rows.csv"),
        ("webhook", "The server responded with 204 No Content.", f"{PUBLIC} /hook"),
    ],
)
def test_connection_uses_checked_ip_address(
    alone: tuple[str, ...], tmp_path: Path, name: str, said: str, reached: str
) -> None:
    told = visit(alone, name, tmp_path)

    # Whoever had looked the name up once more would have gone where it leads now.
    assert told == {"said": said, "reached": [reached], "looked_up": [PUBLIC], "leads_now": INSIDE}


@pytest.mark.parametrize("name", ["hop", "cut"])
def test_host_is_checked_again_after_each_new_lookup(
    alone: tuple[str, ...], tmp_path: Path, name: str
) -> None:
    told = visit(alone, name, tmp_path)

    assert told["said"] == f"{INSIDE} is an internal address, which is blocked."
    assert (told["reached"], told["looked_up"]) == ([f"{PUBLIC} /{name}"], [PUBLIC, INSIDE])
