"""The files of `deploy/`, read by the programs that they are for, where those are installed."""

import os
import re
import shutil
import ssl
import subprocess
import sys
from collections.abc import Iterator
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml

from studio.commands.supervisor import SHUTDOWN_SECONDS
from studio.db.accounts import LinkPurpose, Role
from studio.db.session import open_engine, unit_of_work
from studio.services.accounts import accounts, login_sessions
from studio.services.runs import attempts, runs
from studio.settings import Settings
from tests.support.factories import make_running, metrics_event
from tests.support.live_studio import Studio, free_port
from tests.support.waiting import wait_until

DEPLOY = Path(__file__).parents[2] / "deploy"
UNITS = ("mantissa-studio.service", "mantissa-studio.user.service")
PROXY_OPTIONS = "admin off\n\tskip_install_trust\n\tauto_https disable_redirects\n\tlocal_certs"
"""What a proxy needs that has no domain, and no rights to ports below 1024."""

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd is not installed here"
)
needs_caddy = pytest.mark.skipif(
    shutil.which("caddy") is None, reason="The proxy caddy is not installed here"
)


@needs_systemd
@pytest.mark.parametrize("name", UNITS)
def test_systemd_accepts_the_unit(name: str, tmp_path: Path) -> None:
    text = (DEPLOY / name).read_text("utf-8")
    program = Path(sys.executable).with_name("studio")
    text = re.sub(r"(?<=ExecStart=)\S+", str(program), text)
    text = text.replace("User=mantissa-studio", "User=root")
    unit = tmp_path / "mantissa-studio.service"
    unit.write_text(text, "utf-8")
    kind = ("--user",) if ".user." in name else ()
    command = ("systemd-analyze", *kind, "verify", "--man=no", str(unit))
    environment = os.environ | {"XDG_RUNTIME_DIR": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def unit_seconds(name: str) -> float:
    """Return how long systemd waits for the studio to end."""
    unit = ConfigParser(strict=False, interpolation=None)
    unit.read(DEPLOY / name, "utf-8")
    return seconds(unit["Service"]["TimeoutStopSec"])


def seconds(text: str) -> float:
    found = re.fullmatch(r"(\d+)(s|m|min)", text)
    assert found
    return float(found[1]) * (1 if found[2] == "s" else 60)


def compose() -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))
    return content


def test_runs_have_time_to_save_before_they_are_killed(tmp_path: Path) -> None:
    needed = Settings(home=tmp_path).save_grace_seconds + SHUTDOWN_SECONDS

    assert [unit_seconds(name) > needed for name in UNITS] == [True, True]
    assert seconds(compose()["services"]["studio"]["stop_grace_period"]) > needed


def test_every_variable_is_a_setting() -> None:
    text = "".join(path.read_text("utf-8") for path in sorted(DEPLOY.iterdir()))
    own = {"STUDIO_DOMAIN", "STUDIO_SITE", "STUDIO_UPSTREAM"}
    named = set(re.findall(r"\bSTUDIO_[A-Z_]+\b", text)) - own

    assert len(named) > 3
    assert {name.removeprefix("STUDIO_").lower() for name in named} <= Settings.model_fields.keys()


def test_only_the_proxy_is_published() -> None:
    services = compose()["services"]

    assert [name for name, one in services.items() if "ports" in one] == ["proxy"]
    (subnet,) = compose()["networks"]["inside"]["ipam"]["config"]
    assert services["studio"]["environment"]["STUDIO_TRUSTED_PROXIES"] == subnet["subnet"]


@pytest.fixture
def studio(starter_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Studio]:
    """Start a studio behind the proxy of `deploy/`."""
    studio = Studio.copied(starter_home, tmp_path / "home")
    studio.worker, studio.sign_in = False, "accounts"
    for name, value in (
        ("ALLOWED_HOSTS", "localhost,127.0.0.1"),
        ("TRUSTED_PROXIES", "127.0.0.1"),
        ("PROXY_USER_HEADER", "X-Forwarded-User"),
    ):
        monkeypatch.setenv(f"STUDIO_{name}", value)
    studio.start()
    yield studio
    studio.kill()
    studio.wait()


@pytest.fixture
def proxy(studio: Studio, tmp_path: Path) -> Iterator[httpx2.Client]:
    """Start the proxy, and return a client that believes its certificate."""
    config = tmp_path / "Caddyfile"
    text = (DEPLOY / "Caddyfile").read_text("utf-8")
    config.write_text(text.replace("{\n", f"{{\n\t{PROXY_OPTIONS}\n", 1), "utf-8")
    site = f"https://localhost:{free_port()}"
    variables = {"STUDIO_SITE": site, "STUDIO_UPSTREAM": f"127.0.0.1:{studio.port}"}
    command = ("caddy", "run", "--config", str(config), "--adapter", "caddyfile")
    root = tmp_path / "caddy" / "pki" / "authorities" / "local" / "root.crt"
    with (
        (tmp_path / "proxy.log").open("wb") as log,
        subprocess.Popen(
            command,
            env=os.environ | variables | {"XDG_DATA_HOME": str(tmp_path), "HOME": str(tmp_path)},
            stdout=log,
            stderr=log,
        ) as running,
    ):
        wait_until(root.exists)
        trusted = ssl.create_default_context(cafile=root)
        with httpx2.Client(base_url=site, verify=trusted, trust_env=False, timeout=30) as client:
            wait_until(lambda: is_up(client))
            yield client
        running.terminate()


def is_up(client: httpx2.Client) -> bool:
    try:
        return client.get("/login").status_code == httpx2.codes.OK
    except httpx2.TransportError:
        return False


@needs_caddy
@pytest.mark.slow
def test_sign_in_and_live_metrics_pass_the_proxy(studio: Studio, proxy: httpx2.Client) -> None:
    engine = open_engine(studio.home / "studio.db")
    with unit_of_work(engine) as db:
        secret = login_sessions.issue_link(db, LinkPurpose.ENTER)
        run_id = make_running(db).id or 0
        viewer = login_sessions.begin(db, accounts.add(db, "vera", Role.VIEWER).id or 0)
    forged = proxy.get("/api/v1/runs", headers={"X-Forwarded-User": "root"})
    assert forged.status_code == httpx2.codes.UNAUTHORIZED

    entered = proxy.get(f"/login?t={secret}")
    assert entered.status_code == httpx2.codes.SEE_OTHER
    name, _equals, cookie = entered.headers["set-cookie"].partition("=")
    assert name.startswith("__Host-")
    assert "Secure" in cookie
    proxy.cookies.clear()
    proxy.cookies.set(name, viewer)
    with proxy.stream("GET", f"/api/v1/runs/{run_id}/stream") as stream:
        lines = stream.iter_lines()
        next(lines)
        with unit_of_work(engine) as db:
            attempts.apply_events(db, runs.get(db, run_id), [metrics_event(7)], 100)
        assert any(line.startswith("data:") and _STEP.search(line) for line in lines)
    wait_until(lambda: "\nstudio_stream_viewers 0.0\n" in proxy.get("/metrics").text)
    engine.dispose()


_STEP = re.compile(r'"step": ?7\b')
