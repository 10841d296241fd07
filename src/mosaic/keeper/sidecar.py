"""Starting the sidecar: a program that goes along with the run and outlives it for a while, such as an upload.

It must be nobody's in the run's tree: the keeper's limits, its samples, its signals and its end have nothing to do with
it. So it is started by a process between, which ends at once, before the keeper adopts whoever loses its parent.
"""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress

from mosaic.contracts.folder import RunFolder
from mosaic.keeper.launch import Sidecar

_STARTED = b"pid "


class SidecarNotStarted(Exception):
    """There is none, and the message says why."""


def start_sidecar(sidecar: Sidecar, folder: RunFolder) -> int:
    """Returns its pid. To be called before `become_subreaper`, and before there is any thread."""
    reader, writer = os.pipe()
    between = os.fork()
    if between == 0:
        said = b"it could not be started"
        try:
            said = _started(sidecar, folder)
        finally:
            with suppress(OSError):
                os.write(writer, said[:4000])
            os._exit(0)  # nothing of the keeper's may run here, whatever was raised
    os.close(writer)
    with open(reader, "rb") as answer:
        told = answer.read()
    os.waitpid(between, 0)
    if not told.startswith(_STARTED):
        raise SidecarNotStarted(f"The sidecar was not started: {told.decode(errors='replace')}.")
    return int(told.removeprefix(_STARTED))


def _started(sidecar: Sidecar, folder: RunFolder) -> bytes:
    try:
        folder.logs.mkdir(parents=True, exist_ok=True)
        with open(folder.logs / f"{sidecar['log_name']}.log", "ab") as log:
            process = subprocess.Popen(
                sidecar["argv"],
                cwd=sidecar["cwd"],
                env=sidecar["env"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
    except (OSError, ValueError) as error:
        return str(error).encode()
    return _STARTED + str(process.pid).encode()
