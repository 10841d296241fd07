"""A Ray cluster of several nodes on this machine: `python -m tests.helpers.ray_cluster TEMP_DIR NODES CPUS`.

Each node has a loopback address, from 127.0.0.2 on (Ray replaces 127.0.0.1 by the address of a network interface). The
program prints the cluster's address and then reads commands: `kill ADDRESS` ends a node as a crash would, `add ADDRESS`
starts one. It ends the cluster when its stdin is closed.

A raylet waits at most 15 seconds, which no setting changes, for files in which its agents write the ports that they
chose. On a busy machine they take longer, and the raylet aborts. With ports that are given, and the one file that is
awaited in any case written beforehand, it waits for nobody. A raylet also ends a few seconds after its start if another
process has taken such a port meanwhile, and its cluster cannot be reached. So the ports are not among those that the
system gives to connections and to servers that ask for any.
"""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.free_ports import free_ports

TOKEN = "a-token-for-tests-only-0123456789abcdef"
HEAD = "127.0.0.2"
_PORTS = ("metrics_agent_port", "metrics_export_port", "runtime_env_agent_port", "dashboard_agent_listen_port")
START_ATTEMPTS = 3
_HEALTH_CHECKS = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 1000,
    "health_check_timeout_ms": 10_000,
    "health_check_failure_threshold": 5,
}
"""A node that is killed is noticed in seconds; one that only waits for a processor is not taken for dead."""


class RayCluster:
    """The handle of a test on that process."""

    def __init__(self, process: subprocess.Popen[str], address: str) -> None:
        self._process = process
        self.address = address

    @property
    def variables(self) -> dict[str, str]:
        """What a program needs in its environment to use the cluster."""
        return {"RAY_ADDRESS": self.address, "RAY_AUTH_TOKEN": TOKEN, "RAY_AUTH_MODE": "token"}

    def kill_node(self, address: str) -> None:
        self._command(f"kill {address}")

    def add_node(self, address: str) -> None:
        self._command(f"add {address}")

    def _command(self, line: str) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer.strip() == "done", f"{line}: {answer!r}"


@contextmanager
def running_cluster(variables: Mapping[str, str], nodes: int = 3, cpus: int = 2) -> Iterator[RayCluster]:
    """`variables`: the environment of the nodes, and with it of the runs' processes."""
    environment = {**variables, "RAY_AUTH_TOKEN": TOKEN, "RAY_AUTH_MODE": "token", "RAY_USAGE_STATS_ENABLED": "0"}
    # A short path: those of sockets may have 107 characters.
    with tempfile.TemporaryDirectory(prefix="rc") as temp_dir, open(f"{temp_dir}.log", "wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, temp_dir, str(nodes), str(cpus)],
            cwd=Path(__file__).parents[2],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=environment,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            address = process.stdout.readline().strip()
            if not address:
                log_end = Path(f"{temp_dir}.log").read_text(encoding="utf-8")[-3000:]
                pytest.skip(f"Ray did not start on this machine in {START_ATTEMPTS} attempts: {log_end}")
            yield RayCluster(process, address)
        finally:
            process.stdin.close()
            process.wait(timeout=120)
            process.stdout.close()
    Path(f"{temp_dir}.log").unlink()


def _make_raylets_patient() -> None:
    from ray._private import services, utils

    start = services.start_raylet
    signature = inspect.signature(start)

    def start_raylet(*arguments: Any, **options: Any) -> Any:
        given = signature.bind(*arguments, **options).arguments
        awaited = Path(given["session_dir"]) / f"dashboard_agent_listen_port_{given['node_id']}"
        awaited.write_text(str(given["dashboard_agent_listen_port"]))
        return start(*arguments, **options)

    services.start_raylet = start_raylet
    # Other programs of this user must not find this cluster by themselves.
    utils.write_ray_address = lambda *_, **__: None


def check_cluster(address: str) -> None:
    """Raise where a driver cannot connect: a node may have aborted since its start."""
    import ray

    ray.init(address=address, _node_ip_address=HEAD, log_to_driver=False, configure_logging=False)
    ray.shutdown()


def main(temp_dir: str, node_count: int, cpus: int) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Ray prints to stdout
    _make_raylets_patient()
    from ray.cluster_utils import Cluster

    cluster: Any = None
    nodes: dict[str, Any] = {}

    def add(address: str) -> None:
        options: dict[str, Any] = {} if nodes else {"_system_config": _HEALTH_CHECKS, "temp_dir": temp_dir}
        options |= zip(_PORTS, free_ports(len(_PORTS), address), strict=True)
        nodes[address] = cluster.add_node(
            node_ip_address=address,
            num_cpus=cpus,
            object_store_memory=100 << 20,
            include_dashboard=False,
            **options,
        )

    for attempt in range(START_ATTEMPTS):
        cluster = Cluster()
        nodes.clear()
        try:
            for number in range(node_count):
                add(f"127.0.0.{2 + number}")
            check_cluster(cluster.address)
            break
        except Exception as error:
            print(f"attempt {attempt + 1}: {error}", file=sys.stderr, flush=True)
            cluster.shutdown()
    else:
        return
    print(cluster.address, file=answers, flush=True)
    for line in sys.stdin:
        command, address = line.split()
        if command == "kill":
            cluster.remove_node(nodes.pop(address), allow_graceful=False)
        else:
            add(address)
        print("done", file=answers, flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
