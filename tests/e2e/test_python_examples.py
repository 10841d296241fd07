"""The examples of the Python API, run as a reader would: docs/python-api.md, the README's section and the notebook."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mosaic.contracts.folder import WORKSPACE_VARIABLE, Workspace

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "examples" / "cartpole.ipynb"
RUN_NOTEBOOK = """
import json, sys, nbclient, nbformat
notebook = nbformat.read(sys.argv[1], 4)
nbclient.NotebookClient(notebook, timeout=150, kernel_name="python3").execute()
print(nbformat.writes(notebook))
"""


def python_blocks(document: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", document.read_text(), re.MULTILINE | re.DOTALL)


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
@pytest.mark.parametrize("document", ["docs/python-api.md", "README.md"])
def test_the_examples_of_the_documents_run_in_their_order(workspace: Workspace, tmp_path: Path, document: str) -> None:
    """R11.1: Python API."""
    blocks = python_blocks(ROOT / document)
    assert blocks
    script = tmp_path / "examples.py"
    script.write_text("\n".join(blocks))
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
