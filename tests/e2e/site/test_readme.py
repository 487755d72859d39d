"""The README's script, run as it stands there."""

import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.live_studio import Studio, get_run

pytestmark = pytest.mark.e2e

README = Path(__file__).parents[3] / "README.md"


def test_readme_script_works(make_studio: Callable[..., Studio], tmp_path: Path) -> None:
    studio = make_studio(sign_in="link")
    parts = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    script = "\n".join(parts).replace("http://127.0.0.1:8000", studio.url)
    script = script.replace('Path.home() / ".mantissa-studio"', f"Path({str(studio.home)!r})")
    rows = [{"prompt": f"Say {i}", "completion": f"{i}."} for i in range(24)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env=os.environ | {"STUDIO_HOME": str(studio.home)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert get_run(studio, 1)["status"] == "succeeded"
    assert get_run(studio, 1)["recipe"]["precision"] in {"bf16", "fp32"}  # as recommended here
    assert (tmp_path / "adapter_model.safetensors").stat().st_size > 0
    assert loads(tmp_path / "model.zip", tmp_path / "model") == "torch.bfloat16"


def loads(packed: Path, folder: Path) -> str:
    """Unpack an export and load it as anybody would. Return the format of its weights."""
    zipfile.ZipFile(packed).extractall(folder)
    (inside,) = folder.iterdir()
    code = (
        "import sys; from transformers import AutoModelForCausalLM;"
        "print(AutoModelForCausalLM.from_pretrained(sys.argv[1]).dtype)"
    )
    command = [sys.executable, "-c", code, str(inside)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
