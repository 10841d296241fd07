"""Two machines, imitated by two network namespaces that are joined by one cable and see nothing else."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

TRAINER_HOST = "10.77.0.1"
CLIENT_HOST = "10.77.0.2"


def why_impossible() -> str:
    """Why this machine has no namespaces for a test; empty where it has."""
    if not shutil.which("ip"):
        return "two machines need the command 'ip' (iproute2)"
    if os.geteuid() != 0:
        return "two machines are network namespaces, which only root can create"
    probe = f"mosaic-{os.getpid()}-p"
    if subprocess.run(["ip", "netns", "add", probe], capture_output=True).returncode:
        return "two machines are network namespaces, which this container does not allow"
    subprocess.run(["ip", "netns", "del", probe], check=True)
    return ""


class TwoMachines(NamedTuple):
    trainer: str
    """The namespace in which the daemon runs."""
    client: str
    cable: str
    """The client's end."""

    def on_trainer(self, *command: str) -> list[str]:
        return ["ip", "netns", "exec", self.trainer, *command]

    def on_client(self, *command: str) -> list[str]:
        return ["ip", "netns", "exec", self.client, *command]

    def cut(self) -> None:
        """Both ends lose their carrier; nobody is told that connections are gone."""
        _ip("-n", self.client, "link", "set", self.cable, "down")

    def join(self) -> None:
        _ip("-n", self.client, "link", "set", self.cable, "up")


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, timeout=20)


@contextmanager
def two_machines() -> Iterator[TwoMachines]:
    mark = os.getpid()
    machines = TwoMachines(f"mosaic-{mark}-t", f"mosaic-{mark}-c", f"mc{mark}")
    far_end = f"mt{mark}"
    try:
        for name in machines[:2]:
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
        _ip("-n", machines.trainer, "link", "add", far_end, "type", "veth", "peer", "name", machines.cable)
        _ip("-n", machines.trainer, "link", "set", machines.cable, "netns", machines.client)
        for name, end, host in (
            (machines.trainer, far_end, TRAINER_HOST),
            (machines.client, machines.cable, CLIENT_HOST),
        ):
            _ip("-n", name, "address", "add", f"{host}/24", "dev", end)
            _ip("-n", name, "link", "set", end, "up")
        yield machines
    finally:
        for name in machines[:2]:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, timeout=20)
