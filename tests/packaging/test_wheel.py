"""The wheel, built and installed as on a stranger's machine: no checkout beside it, no npm."""

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

import studio
from hatch_build import RESOURCES, bring_vendor_files

ROOT = Path(__file__).parents[2]

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
