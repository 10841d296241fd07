"""Commands and daemons that start at once: a process that has imported both forks for each of them.

To import them takes most of the time of a command, and tests run hundreds. The server is started when it is first used
and ends with the process that started it. A request is one message on a socket: a command as JSON, with descriptors for
its stdin, stdout and stderr and one for the answer, which is the id of the process and then its exit code.
"""

from __future__ import annotations

import atexit
import functools
import gc
import importlib
import json
import os
import pkgutil
import selectors
import signal
import socket
import struct
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

SERVERS: set[int] = set()
"""Process ids of the servers of this process."""
_MAX_BYTES = 1 << 20
_NUMBER = struct.Struct("=i")
_PATH = "PYTHONPATH"
_READ_AT_START = ("PYTHON", "MOSAIC_TEST_", "LD_", "LC_", "LANG", "GRPC_", "OMP_", "OPENBLAS_", "MKL_")
"""How the names of variables begin that are read once, when Python starts or a library is loaded, or by others."""


DAEMON = [sys.executable, "-m", "mosaic.trainer"]
"""How the command of a daemon begins; every other is one of the command line."""


class ForkedProcess:
    """As `subprocess.Popen`, as far as tests use it."""

    def __init__(self, argv: Sequence[str], answers: int) -> None:
        self._argv = argv
        self._answers = answers
        weakref.finalize(self, os.close, answers)
        self.pid = self._read()
        self.returncode: int | None = None

    def _read(self) -> int:
        (number,) = _NUMBER.unpack(os.read(self._answers, _NUMBER.size))
        return int(number)

    def poll(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code; a negative one is the number of a signal."""
        if self.returncode is None:
            with selectors.DefaultSelector() as selector:
                selector.register(self._answers, selectors.EVENT_READ)
                if not selector.select(timeout):
                    raise subprocess.TimeoutExpired(list(self._argv), timeout or 0)
            self.returncode = self._read()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class CommandServer:
    """The handle of the tests on that process."""

    def __init__(self) -> None:
        self._variables = _variables_read_at_start(os.environ)
        self._path = os.environ.get(_PATH, "")
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
        SERVERS.add(self._process.pid)

    def can_start(self, variables: Mapping[str, str], plugins: str) -> bool:
        """Whether a process that has started already can have this environment."""
        path = os.pathsep.join(filter(None, (plugins, self._path)))
        return variables.get(_PATH, "") == path and self._variables == _variables_read_at_start(variables)

    def start(
        self, argv: Sequence[str], variables: Mapping[str, str], stdout: int, stderr: int, plugins: str = ""
    ) -> ForkedProcess:
        request = {"argv": argv, "variables": dict(variables), "folder": os.getcwd(), "plugins": plugins}
        answers, theirs = os.pipe()
        try:
            with open(os.devnull, "rb") as stdin:
                descriptors = [stdin.fileno(), stdout, stderr, theirs]
                socket.send_fds(self._socket, [json.dumps(request).encode()], descriptors)
        finally:
            os.close(theirs)
        return ForkedProcess(argv, answers)


@functools.cache
def command_server() -> CommandServer:
    return CommandServer()


def can_fork(variables: Mapping[str, str], plugins: str = "") -> bool:
    """Whether the server can start a process with this environment, in which `plugins` are the first to be imported."""
    return sys.platform == "linux" and command_server().can_start(variables, plugins)


def _variables_read_at_start(variables: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in variables.items() if name.startswith(_READ_AT_START) and name != _PATH}


class _Request(NamedTuple):
    body: bytes
    streams: Sequence[int]


def _serve(requests: socket.socket) -> _Request | None:
    """Fork for each request; returns it in the new process, and nothing when the other side is closed."""
    with selectors.DefaultSelector() as selector:
        selector.register(requests, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is requests:
                    body, descriptors, _, _ = socket.recv_fds(requests, _MAX_BYTES, 4)
                    if not body:
                        return None
                    *streams, answer = descriptors
                    if not (pid := os.fork()):
                        return _Request(body, streams)
                    os.write(answer, _NUMBER.pack(pid))
                    selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, answer))
                    for descriptor in streams:
                        os.close(descriptor)
                else:
                    selector.unregister(key.fd)
                    os.close(key.fd)
                    _report(*key.data)


def _report(pid: int, answer: int) -> None:
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    try:
        os.write(answer, _NUMBER.pack(code))
    except BrokenPipeError:  # nobody waits any more
        return
    finally:
        os.close(answer)


def _take_over(request: _Request) -> None:
    """Make this process what its caller would have started."""
    for number, descriptor in enumerate(request.streams):
        os.dup2(descriptor, number)
        os.close(descriptor)
    wanted = json.loads(request.body)
    os.environ.clear()
    os.environ.update(wanted["variables"])
    time.tzset()
    os.chdir(wanted["folder"])
    sys.argv = wanted["argv"]
    if wanted["plugins"]:
        sys.path.insert(0, wanted["plugins"])


class _Process:
    """Ends without cleaning up."""

    def __init__(self) -> None:
        self._code = 1
        # The first that is registered is called last. What follows would delete every module, which takes longer than
        # most commands.
        atexit.register(self._exit)

    def run(self, program: Callable[[], int]) -> None:
        self._code = program()

    def _exit(self) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(self._code)


def main(process: _Process) -> None:
    import mosaic.cli
    import mosaic.features
    from mosaic.cli.main import main as run_command
    from mosaic.trainer.__main__ import main as run_daemon

    found = [*pkgutil.iter_modules(mosaic.cli.__path__, "mosaic.cli.")]
    found += (row for row in pkgutil.walk_packages(mosaic.features.__path__, "mosaic.features.") if ".cli" in row.name)
    for module in found:
        importlib.import_module(module.name)
    gc.freeze()  # memory that is not touched is shared
    with socket.socket(fileno=int(sys.argv[1])) as requests:
        request = _serve(requests)
    if request is None:
        return
    _take_over(request)
    if sys.argv[: len(DAEMON)] == DAEMON:
        process.run(lambda: run_daemon(sys.argv[len(DAEMON) :]))
    else:
        process.run(run_command)


if __name__ == "__main__":
    sys.path.remove(os.path.dirname(os.path.abspath(__file__)))
    main(_Process())
