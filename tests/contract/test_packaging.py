"""What the package, the image and the chores promise, held to what is there."""

import json
import os
import re
import tomllib
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from hatch_build import NODE_WHEEL, PINS, RESOURCES, StudioBuildHook
from studio import resources

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def lines(name: str) -> list[str]:
    return [line for line in read(name).splitlines() if line and not line.startswith("#")]


def requirements() -> list[Requirement]:
    project = tomllib.loads(read("pyproject.toml"))["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    return [Requirement(line) for group in groups for line in group]


def chores() -> list[str]:
    return re.findall(r"^([a-z0-9-]+):.*## ", read("Makefile"), re.MULTILINE)


def hook(root: Path) -> StudioBuildHook:
    builder = WheelBuilder(str(ROOT))
    return StudioBuildHook(
        str(root), {}, builder.config, builder.metadata, "", "wheel", builder.app
    )


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with our pins and no JavaScript yet, on a machine without npm."""
    for name in PINS:
        (tmp_path / name).write_text(read(name), encoding="utf-8")
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def test_checkout_uses_its_own_resource_folders() -> None:
    found = [resources.templates_dir(), resources.static_dir(), resources.migrations_dir()]

    assert found == [ROOT / name for name in RESOURCES]


def test_every_dependency_is_pinned_to_allowed_version() -> None:
    pins = dict(line.split("==") for line in lines("constraints.txt"))

    loose = [str(need) for need in requirements() if not allows(need, pins)]

    assert loose == []


def allows(need: Requirement, pins: dict[str, str]) -> bool:
    pin = pins.get(canonicalize_name(need.name))
    return pin is not None and need.specifier.contains(pin)


def test_pins_have_no_platform_specific_builds() -> None:
    assert [
        line for line in lines("constraints.txt") if not re.fullmatch(r"[\w.-]+==[\w.]+", line)
    ] == []


def test_npm_lock_contains_no_urls() -> None:
    assert [line for line in read("package-lock.json").splitlines() if "://" in line] == []


def test_npm_lock_matches_package_json() -> None:
    asked, locked = json.loads(read("package.json")), json.loads(read("package-lock.json"))

    versions = {
        name: locked["packages"][f"node_modules/{name}"]["version"]
        for name in asked["dependencies"]
    }

    assert versions == asked["dependencies"]


def test_every_vendored_script_includes_licence() -> None:
    asked = json.loads(read("package.json"))

    licensed = {
        source.removesuffix("/LICENSE") for source in asked["vendor"] if source.endswith("/LICENSE")
    }

    assert licensed == set(asked["dependencies"])


def test_build_requires_node_when_npm_is_missing(checkout: Path) -> None:
    assert hook(checkout).dependencies() == [NODE_WHEEL]


def test_build_does_not_require_node_when_npm_is_skipped(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STUDIO_SKIP_NPM", "1")

    assert hook(checkout).dependencies() == []


def test_editable_wheel_contains_no_resource_copies(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STUDIO_SKIP_NPM", "1")
    build_data: dict[str, dict[str, str]] = {"force_include": {}}

    hook(checkout).initialize("editable", build_data)

    assert build_data == {"force_include": {}}


def test_image_build_context_contains_all_wheel_inputs() -> None:
    wanted = {
        *RESOURCES,
        *PINS,
        "studio",
        "pyproject.toml",
        "hatch_build.py",
        "constraints.txt",
        "README.md",
        "LICENSE",
    }

    let_in = {line.removeprefix("!") for line in lines(".dockerignore") if line.startswith("!")}

    assert let_in == {name for name in wanted if (ROOT / name).exists()} == wanted


def test_image_health_check_uses_existing_api_route() -> None:
    asked = re.findall(r"127\.0\.0\.1:8000(/[\w/]+)", read("Dockerfile"))

    answered = json.loads(read("docs/openapi.json"))["paths"]

    assert [path for path in asked if path in answered] == ["/api/v1/health"]


def test_makefile_phony_lists_every_target() -> None:
    named = re.search(r"^\.PHONY: help (.+)", read("Makefile").replace("\\\n", ""), re.MULTILINE)

    assert named is not None
    assert chores() == named[1].split()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_documents_name_only_existing_make_targets(document: Path) -> None:
    in_prose_or_block = r"`make ([a-z0-9]+)|^make ([a-z0-9]+)\s*(?:#.*)?$"

    named = re.findall(in_prose_or_block, document.read_text(encoding="utf-8"), re.MULTILINE)

    assert [name for pair in named for name in pair if name and name not in chores()] == []


def test_ci_script_is_executable() -> None:
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
