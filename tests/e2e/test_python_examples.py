"""The Python of the README and of the notebook, run as a reader would; `test_documents.py` runs that of the guides."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.helpers.documents import ROOT, read_blocks

from mosaic.contracts.folder import WORKSPACE_VARIABLE, Workspace

NOTEBOOK = ROOT / "examples" / "cartpole.ipynb"
RUN_NOTEBOOK = """
import json, sys, nbclient, nbformat
notebook = nbformat.read(sys.argv[1], 4)
nbclient.NotebookClient(notebook, timeout=150, kernel_name="python3").execute()
print(nbformat.writes(notebook))
"""


def run_python(workspace: Workspace, folder: Path, *arguments: str) -> str:
    result = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, WORKSPACE_VARIABLE: str(workspace.root)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.mark.timeout(300)
def test_the_example_of_the_readme_runs(workspace: Workspace, tmp_path: Path) -> None:
    [block] = [block.text for block in read_blocks(ROOT / "README.md") if block.language == "python"]
    script = tmp_path / "example.py"
    script.write_text(block)
    assert run_python(workspace, tmp_path, str(script))


@pytest.mark.timeout(300)
def test_the_notebook_runs_from_top_to_bottom(workspace: Workspace, tmp_path: Path) -> None:
    executed = json.loads(run_python(workspace, tmp_path, "-c", RUN_NOTEBOOK, str(NOTEBOOK)))
    outputs = [output for cell in executed["cells"] for output in cell.get("outputs", [])]
    shown = json.dumps(outputs)
    assert "text/html" in shown
    assert "image/png" in shown
    assert "succeeded" in shown
    assert all("outputs" not in cell or not cell["outputs"] for cell in json.loads(NOTEBOOK.read_text())["cells"])
