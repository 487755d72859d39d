"""Somebody who follows a how-to: at a terminal and in Python, beside a real studio."""

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

from tests.support.live_studio import ROOT, Studio

HOW_TO = ROOT / "docs" / "how-to"
_BLOCK = re.compile(r"^( *)```\w*\n(.*?)^\1```", re.DOTALL | re.MULTILINE)


def blocks(name: str) -> list[str]:
    """Return the blocks of code of a how-to, in order.

    Tests unpack the list, so a block that is added to a how-to fails until it is tried, too.
    """
    found = _BLOCK.findall((HOW_TO / f"{name}.md").read_text(encoding="utf-8"))
    return [dedent(block) for _indent, block in found]


@dataclass(frozen=True, slots=True)
class Reader:
    studio: Studio
    folder: Path
    """Where the commands run."""

    def shell(self, text: str) -> str:
        """Run commands as they stand in a how-to, and return what they print.

        Raises:
            AssertionError: One of them failed.

        """
        return self._run("/bin/sh", "-ec", text)

    def python(self, text: str) -> str:
        """Run a program as it stands in a how-to, but for the studio's address.

        Raises:
            AssertionError: It failed.

        """
        return self._run(sys.executable, "-c", text.replace("http://127.0.0.1:8000", self.url))

    @property
    def url(self) -> str:
        return self.studio.url

    def _run(self, *command: str) -> str:
        programs = self._write_program()
        known = {"STUDIO_URL": self.url, "STUDIO_TOKEN": "local", "PYTHONPATH": str(ROOT)}
        home = {"STUDIO_HOME": str(self.studio.home), "PATH": f"{programs}:{os.environ['PATH']}"}
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=os.environ | known | home,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def _write_program(self) -> Path:
        """Write a program `studio` as an install makes it, and return its folder."""
        folder = self.folder / "bin"
        folder.mkdir(exist_ok=True)
        for name, module in (("studio", "-m studio"), ("python", "")):
            program = folder / name
            program.write_text(f'#!/bin/sh\nexec "{sys.executable}" {module} "$@"\n')
            program.chmod(0o755)
        return folder


def with_numbers(text: str, **numbers: int) -> str:
    """Put IDs in place of those that a how-to has made up: `run=3` for its run 12."""
    made_up = {"run": "12", "export": "3", "other_run": "7"}
    for name, number in numbers.items():
        text = re.sub(rf"\b{made_up[name]}\b", f"\0{number}", text)
    return text.replace("\0", "")
