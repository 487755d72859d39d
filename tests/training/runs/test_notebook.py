"""The notebook of the quick start, run by a real kernel against a real studio."""

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from tests.support import live_studio

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

NOTEBOOK = Path(__file__).parents[3] / "docs" / "quick-start.ipynb"


def test_quick_start_runs_from_top_to_bottom(
    starter_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    studio = live_studio.Studio.copied(starter_home, tmp_path / "home")
    studio.start()
    monkeypatch.setenv("STUDIO_URL", studio.url)
    monkeypatch.setenv("STUDIO_HOME", str(studio.home))
    notebook: Any = nbformat.read(NOTEBOOK, as_version=4)
    try:
        NotebookClient(notebook, timeout=240).execute()
    finally:
        live_studio.stop_everything(studio)

    shown = [
        output["data"].get("text/html", "")
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
        if "data" in output
    ]
    submitted, watched, curves, watched_again, compared, export = shown
    assert "<b>from a notebook #1: queued</b>" in submitted
    for one in (watched, watched_again):
        assert "succeeded" in one
        assert "<polyline" in one
    assert "eval_loss" in curves
    assert compared.startswith("<table")
    assert "queued" in export
