"""A machine whose GPUs are those of a fake `nvidia-smi`, a fake MPS and a fake library of the driver."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("fake_nvml.c")
MPS_CONTROL = """#!/bin/sh
# Stands in for NVIDIA's program: a file is the server.
server="$CUDA_MPS_PIPE_DIRECTORY/server"
if [ "$1" = -d ]; then touch "$server"; echo "start ${CUDA_VISIBLE_DEVICES-all}" >> LOG; exit; fi
read -r command
[ -e "$server" ] || exit 1
[ "$command" = quit ] && echo quit >> LOG
exit 0
"""


def install_gpus(tools: Path, count: int, monkeypatch: pytest.MonkeyPatch, mps_log: Path | None = None) -> None:
    """Make programs that are started from now on see this many GPUs; with `mps_log`, also MPS."""
    tools.mkdir(exist_ok=True)
    lines = "".join(f"echo 'GPU {number}: Model {number} (UUID: GPU-{number})'\n" for number in range(count))
    programs = {"nvidia-smi": f"#!/bin/sh\n{lines}"}
    if mps_log is not None:
        programs["nvidia-cuda-mps-control"] = MPS_CONTROL.replace("LOG", str(mps_log))
    for name, text in programs.items():
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")


def install_driver(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make programs that are started from now on measure the GPUs of `fake_nvml.c`."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("A fake library of the driver needs a C compiler.")
    tools.mkdir(exist_ok=True)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", tools / "libnvidia-ml.so.1", SOURCE], check=True)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tools))
