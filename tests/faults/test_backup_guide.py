"""The commands of the how-to on backups, run as they stand there."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.live_studio import ROOT, Studio

pytestmark = pytest.mark.faults

HOW_TO = ROOT / "docs" / "how-to" / "back-up-and-move.md"


def test_backup_guide_commands_work(starter_home: Path, tmp_path: Path) -> None:
    blocks = re.findall(r"```bash\n(.*?)```", HOW_TO.read_text(encoding="utf-8"), re.DOTALL)
    home = Studio.copied(starter_home, tmp_path / "home").home
    command = tmp_path / "bin" / "studio"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m studio "$@"\n')
    command.chmod(0o755)
    path = f"{command.parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["/bin/sh", "-ec", "".join(blocks)],
        cwd=tmp_path,
        env=os.environ | {"STUDIO_HOME": str(home), "PATH": path, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{tmp_path / 'moved'} is accessible to you only" in done.stdout
    assert (tmp_path / "moved" / "models" / "starter" / "config.json").exists()
    assert not (tmp_path / "restored").exists()
