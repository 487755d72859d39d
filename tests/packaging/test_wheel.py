"""The wheel, built and installed as on a stranger's machine: no checkout beside it, no npm."""

import os
import re
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest

import studio
from hatch_build import RESOURCES, bring_vendor_files
from tests.support.live_studio import free_port
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
OK = httpx2.codes.OK

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    bring_vendor_files(ROOT)
    folder = tmp_path_factory.mktemp("sdist")
    run(sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", folder, ROOT)
    return next(folder.glob("*.tar.gz"))


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the wheel, built from the sdist where there is no npm."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = (sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation")
    run(*pip, "--wheel-dir", folder, sdist, PATH=str(folder))
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a virtual environment with the wheel in it, and the packages we run on behind it."""
    venv = tmp_path_factory.mktemp("venv")
    run(sys.executable, "-m", "venv", "--without-pip", venv)
    pip = (sys.executable, "-m", "pip", "--python", venv / "bin" / "python")
    run(*pip, "install", "--no-deps", "--no-index", wheel)
    packages = next(venv.glob("lib/python*/site-packages"))
    (packages / "behind.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    return venv


@pytest.mark.parametrize("folder", RESOURCES)
def test_wheel_contains_every_resource_file(wheel: Path, folder: str) -> None:
    prefix = f"studio/_resources/{folder}/"
    with zipfile.ZipFile(wheel) as archive:
        carried = [name for name in archive.namelist() if name.startswith(prefix)]

    files = [path for path in (ROOT / folder).rglob("*") if path.is_file()]
    here = [prefix + path.relative_to(ROOT / folder).as_posix() for path in files]
    assert sorted(carried) == sorted(name for name in here if not name.endswith(".pyc"))


def test_wheel_contains_every_compiled_catalogue(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        carried = [name for name in archive.namelist() if name.endswith(".mo")]

    catalogues = (ROOT / "studio" / "locale").rglob("*.po")
    here = [path.relative_to(ROOT).with_suffix(".mo").as_posix() for path in catalogues]
    assert sorted(carried) == sorted(here)


def test_installed_studio_translates_to_chinese(installed: Path, tmp_path: Path) -> None:
    ask = (
        "from studio.web.i18n import locale; locale.set_language('zh-Hans'); "
        "print(locale.gettext('Runs'))"
    )

    assert run(installed / "bin" / "python", "-c", ask, home=tmp_path) == "运行"


def test_installed_studio_prints_version(installed: Path, tmp_path: Path) -> None:
    assert run(installed / "bin" / "studio", "--version", home=tmp_path) == studio.__version__


def test_installed_studio_uses_its_own_templates(installed: Path, tmp_path: Path) -> None:
    ask = "from studio.resources import templates_dir; print(templates_dir())"

    found = run(installed / "bin" / "python", "-c", ask, home=tmp_path)

    assert Path(found).is_relative_to(installed)


def test_installed_studio_passes_doctor(installed: Path, tmp_path: Path) -> None:
    run(installed / "bin" / "studio", "doctor", home=tmp_path)


def test_installed_studio_serves_pages_and_scripts(installed: Path, tmp_path: Path) -> None:
    with serving(installed, tmp_path) as api:
        page = api.get("/")
        assets = re.findall(r'(?:src|href)="(/static/[^"]+)"', page.text)
        answers = {asset: api.get(asset) for asset in assets}

    assert "<h1" in page.text
    assert {Path(urlsplit(asset).path).suffix for asset in assets} >= {".css", ".js", ".svg"}
    assert [asset for asset, found in answers.items() if found.status_code != OK] == []


@contextmanager
def serving(installed: Path, home: Path) -> Iterator[httpx2.Client]:
    """Start an installed studio, web and worker, and return a client of it."""
    port = free_port()
    process = subprocess.Popen(
        [installed / "bin" / "studio", "serve", "--port", str(port)],
        cwd=home,
        env=os.environ | {"STUDIO_HOME": str(home), "STUDIO_SIGN_IN": "none"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        base = f"http://127.0.0.1:{port}"
        with httpx2.Client(base_url=base, trust_env=False, timeout=30) as client:
            wait_until(lambda: is_healthy(process, client))
            yield client
    finally:
        process.terminate()
        process.wait(60)


def is_healthy(process: subprocess.Popen[bytes], client: httpx2.Client) -> bool:
    assert process.poll() is None, "The studio has ended."
    try:
        return client.get("/api/v1/health").status_code == OK
    except httpx2.TransportError:
        return False


def run(*command: str | Path, home: Path | None = None, **environment: str) -> str:
    """Return what a command says; fail with what it complained of."""
    done = subprocess.run(
        command,
        cwd=home,
        env=os.environ | environment | {"STUDIO_HOME": str(home)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()
