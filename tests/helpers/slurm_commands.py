"""Stand-ins for sbatch, srun, sacct and scancel, which start jobs on this machine: what submitit needs of Slurm.

`FakeSlurm` installs this file under their names. Jobs wait while the file `hold` exists; a test may set the state that
Slurm reports of a job, as when a node fails.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

FOLDER_VARIABLE = "FAKE_SLURM"
NODE = "node7"


class FakeSlurm:
    """The handle of a test on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        commands = folder / "bin"
        commands.mkdir(parents=True)
        (folder / "jobs").mkdir()
        for name in ("sbatch", "srun", "sacct", "scancel"):
            # The shell finds Python where its path is too long for a first line, or has a space.
            starter = f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -IS {shlex.quote(__file__)} {name} "$@"\n'
            (commands / name).write_text(starter)
            (commands / name).chmod(0o755)
        self.variables = {
            FOLDER_VARIABLE: str(folder),
            "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}",
        }

    def hold(self) -> None:
        (self.folder / "hold").touch()

    def release(self) -> None:
        """Start all jobs that wait."""
        (self.folder / "hold").unlink(missing_ok=True)
        for job in sorted((self.folder / "jobs").iterdir()):
            if not (job / "pid").exists() and not (job / "state").exists():
                start_job(job)

    def refuse(self, message: str) -> None:
        """Let sbatch fail; empty: no longer."""
        (self.folder / "refusal").write_text(message)

    def end_job(self, job_id: str, state: str) -> None:
        """Kill all processes of a job, as a node does that fails."""
        job = self.folder / "jobs" / job_id
        (job / "state").write_text(state)
        if (job / "pid").exists():
            os.killpg(int((job / "pid").read_text()), signal.SIGKILL)

    def cancel(self, job_id: str) -> None:
        """As its user does on a terminal."""
        subprocess.run(["scancel", job_id], env=os.environ | self.variables, check=True)

    def script(self, job_id: str) -> str:
        """What was submitted."""
        return (self.folder / "jobs" / job_id / "script").read_text()

    def cancelled(self) -> list[str]:
        """The jobs that scancel was called with."""
        path = self.folder / "cancelled"
        return path.read_text().split() if path.exists() else []


def start_job(job: Path) -> None:
    """In the environment of the process that submitted it."""
    environment = json.loads((job / "environment").read_text())
    array, _, index = job.name.partition("_")
    variables = {"SLURM_JOB_ID": array, "SLURMD_NODENAME": NODE}
    if index:
        variables |= {"SLURM_ARRAY_JOB_ID": array, "SLURM_ARRAY_TASK_ID": index}
    script = f"bash {shlex.quote(str(job / 'script'))}; echo $? > {shlex.quote(str(job / 'exit'))}"
    process = subprocess.Popen(
        ["bash", "-c", script],
        env=environment | variables,
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    (job / "pid").write_text(str(process.pid))


def sbatch(folder: Path, arguments: list[str]) -> int:
    refusal = folder / "refusal"
    if refusal.exists() and refusal.read_text():
        print(f"sbatch: error: {refusal.read_text()}", file=sys.stderr)
        return 1
    script = Path(arguments[0]).read_text(encoding="utf-8")
    number = 1000 + len({job.name.partition("_")[0] for job in (folder / "jobs").iterdir()})
    array = re.search(r"^#SBATCH --array=0-(\d+)", script, re.MULTILINE)
    names = [f"{number}_{index}" for index in range(int(array[1]) + 1)] if array else [str(number)]
    for name in names:
        job = folder / "jobs" / name
        job.mkdir()
        (job / "script").write_text(script)
        (job / "environment").write_text(json.dumps(dict(os.environ)))
        if not (folder / "hold").exists():
            start_job(job)
    print(f"Submitted batch job {number}")
    return 0


def srun(folder: Path, arguments: list[str]) -> int:
    assert arguments[0] == "--unbuffered"
    outputs, command = {}, arguments[1:]
    while command[0].startswith("--"):
        outputs[command[0]], command = command[1], command[2:]
    marks = {"%j": "SLURM_JOB_ID", "%A": "SLURM_ARRAY_JOB_ID", "%a": "SLURM_ARRAY_TASK_ID"}
    for descriptor, option in ((1, "--output"), (2, "--error")):
        path = outputs[option].replace("%t", "0")
        for mark, variable in marks.items():
            path = path.replace(mark, os.environ.get(variable, ""))
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), descriptor)
    os.execvp(command[0], command)


def sacct(folder: Path, arguments: list[str]) -> int:
    print("JobID|State|NodeList")
    for job in (folder / "jobs").iterdir():
        if job.name.partition("_")[0] in arguments:
            print(f"{job.name}|{job_state(job)}|{NODE}")
    return 0


def job_state(job: Path) -> str:
    if (job / "state").exists():
        return (job / "state").read_text()
    if (job / "exit").exists():
        return "COMPLETED" if (job / "exit").read_text().strip() == "0" else "FAILED"
    return "RUNNING" if (job / "pid").exists() else "PENDING"


def scancel(folder: Path, arguments: list[str]) -> int:
    with open(folder / "cancelled", "a", encoding="utf-8") as file:
        file.write(f"{arguments[0]}\n")
    job = folder / "jobs" / arguments[0]
    if not (job / "exit").exists():
        (job / "state").write_text("CANCELLED by 1000")
        if (job / "pid").exists():
            os.killpg(int((job / "pid").read_text()), signal.SIGTERM)
    return 0


if __name__ == "__main__":
    run = {"sbatch": sbatch, "srun": srun, "sacct": sacct, "scancel": scancel}[sys.argv[1]]
    sys.exit(run(Path(os.environ[FOLDER_VARIABLE]), sys.argv[2:]))
