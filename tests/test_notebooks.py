"""The notebooks run from top to bottom, with the preset that takes seconds, and have no outputs."""

import json
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted(ROOT.glob("examples/notebooks/*.ipynb"))
by_name = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


@pytest.mark.slow
@by_name
def test_notebook_runs(path, tmp_path, monkeypatch):
    """In a copy of its folder, beside the results of a checkout."""
    folder = tmp_path / "examples" / "notebooks"
    folder.mkdir(parents=True)
    (tmp_path / "results").symlink_to(ROOT / "results")
    monkeypatch.setenv("EPCX_PRESET", "smoke")
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "2")
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    ).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert any("text/html" in output.get("data", {}) for output in outputs)


@by_name
def test_notebook_is_committed_without_outputs(path):
    cells = json.loads(path.read_text())["cells"]
    assert cells[0]["cell_type"] == "markdown"
    assert all(not cell.get("outputs") for cell in cells)
