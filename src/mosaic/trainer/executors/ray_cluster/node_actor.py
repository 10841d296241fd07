"""One attempt of a run on a node of a cluster: an actor that starts the keeper and answers questions about it.

It needs nothing of Ray itself; the bridge makes an actor of the class. The keeper is not its child, as Ray kills the
children of an actor that ends and leaves their children alive. The keeper holds the other end of a pipe of this process
instead and stops the worker when that closes.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from mosaic import __version__
from mosaic.base.fastlane import FrameRequest, LaneReader, lanes_folder
from mosaic.base.fastlane.lane_files import lane_indices
from mosaic.base.fastlane.layout import Frame
from mosaic.base.files import file_size, write_json
from mosaic.base.processes import boot_id, identify, is_gone
from mosaic.base.worker_registry import get_worker
from mosaic.contracts.folder import INBOX_OFFSET_VARIABLE, RunFolder
from mosaic.contracts.process_identity import ProcessIdentity
from mosaic.keeper.launch_spec import Grace, LaunchSpec, Limits, detached_keeper_command
from mosaic.keeper.survivors import kill_survivors
from mosaic.trainer.executors.ray_cluster.folder_sync import (
    KEEPER_NAME,
    Listing,
    check_link,
    check_path,
    is_appended,
    list_folder,
    read_chunk,
    write_chunk,
)
from mosaic.trainer.executors.worker_environment import worker_environment

LIFELINE_S = 30.0
"""How long a keeper whose actor is gone lets its worker continue."""
MAX_WATCHED_LANES = 64
_START_TIMEOUT_S = 60.0
_RECORD_CHECK_S = 1.0
_OWNER_NAME = "keeper.json"
_KEPT_S = 3600.0
"""Before this time a folder without a keeper may still be about to be copied."""


@dataclass(frozen=True)
class NodeFacts:
    """What a node says of itself before a run is started on it."""

    address: str
    boot_id: str
    python: str
    mosaic: str
    sees_folder: bool
    """Whether it has the daemon's run folder: the same storage is mounted there."""

    def refuse(self) -> str | None:
        """Return why no run of this program may be started there; None: it may."""
        own = f"MOSAIC {__version__} with Python {_python_version()}"
        there = f"MOSAIC {self.mosaic} with Python {self.python}"
        if own == there:
            return None
        return f"Node {self.address} has {there}, the trainer has {own}. Install the same versions on all nodes."


@dataclass(frozen=True)
class NodeLaunch:
    """What the daemon decides of an attempt; the paths, the program and the environment are the node's."""

    worker: str
    config: str
    """The worker's config, as the text of a file."""
    is_resume: bool
    threads: int
    limits: Limits
    grace_s: Grace
    end_key: str


@dataclass(frozen=True)
class NodeReport:
    attempt: int
    is_started: bool
    """Whether the keeper was started."""
    is_copied: bool
    """Whether the run folder is one of the node's own, to be copied; else it is the daemon's."""
    is_keeper_alive: bool
    inbox_size: int
    lanes: tuple[int, ...]
    """Environments with live frames."""
    listing: Listing
    """Empty where nothing is copied."""
    chunks: dict[str, bytes]
    """By path: what was appended to a file after the given offset."""


class NodeActor:
    def __init__(self, run_id: str, attempt: int) -> None:
        self._run_id = run_id
        self._attempt = attempt
        self._folder: RunFolder | None = None
        self._is_copied = False
        self._scratch: Path | None = None
        """A folder of this attempt on this node; the run folder is in it if it is copied."""
        self._keeper: ProcessIdentity | None = None
        self._lifeline: int | None = None
        self._readers: dict[int, LaneReader] = {}

    def describe(self, token_path: str, token: str) -> NodeFacts:
        """`token_path`: a file that the bridge has written into the run folder, with `token` as its content."""
        try:
            sees_folder = Path(token_path).read_text(encoding="utf-8") == token
        except OSError:
            sees_folder = False
        return NodeFacts(_node_address(), boot_id(), _python_version(), __version__, sees_folder)

    # --- before the start

    def prepare(self, shared_folder: str | None) -> None:
        """Use the run folder of the daemon where it is visible here, otherwise make an empty one."""
        root = Path(tempfile.gettempdir()) / f"mosaic-ray-{os.getuid()}"
        root.mkdir(mode=0o700, exist_ok=True)
        if root.stat().st_uid != os.getuid():
            raise PermissionError(f"{root} belongs to another user")
        _delete_abandoned(root)
        self._scratch = Path(tempfile.mkdtemp(prefix=f"{self._run_id}-{self._attempt}-", dir=root))
        if shared_folder is not None:
            self._folder = RunFolder(shared_folder)
            return
        self._is_copied = True
        self._folder = RunFolder(self._scratch / self._run_id)
        self._folder.logs.mkdir(parents=True)
        self._folder.inbox.touch()

    def write(self, path: str, offset: int, data: bytes, mtime_ns: int) -> int:
        """Append a part of a file that the attempt starts with; return its size."""
        size = write_chunk(self._path, path, offset, data)
        os.utime(self._path / path, ns=(mtime_ns, mtime_ns))
        return size

    def link(self, path: str, target: str) -> None:
        link = self._path / check_path(path)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(check_link(path, target))

    def begin(self, launch: NodeLaunch, inbox_offset: int) -> None:
        """Start the keeper; raises OSError or a MosaicError where that is not possible."""
        if self._keeper is not None:
            return
        assert self._folder is not None
        assert self._scratch is not None
        worker = get_worker(launch.worker)
        config = self._scratch / "worker-config.json"
        config.write_text(launch.config, encoding="utf-8")
        argv = [*worker.command, "--config", str(config), *(["--resume"] if launch.is_resume else [])]
        reader, self._lifeline = os.pipe()
        spec: LaunchSpec = {
            "folder": str(self._path),
            "argv": argv,
            "cwd": str(self._path),
            "env": {**self._environment(config, launch.threads), INBOX_OFFSET_VARIABLE: str(inbox_offset)},
            "log_name": worker.log_prefix,
            "limits": launch.limits,
            "inbox_offset": inbox_offset,
            "grace_s": launch.grace_s,
            "end_key": launch.end_key,
            "lifeline_fd": reader,
            "lifeline_s": LIFELINE_S,
        }
        self._folder.logs.mkdir(parents=True, exist_ok=True)
        with open(self._folder.logs / "keeper.log", "ab") as log:
            starter = subprocess.Popen(
                detached_keeper_command(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd="/",
                pass_fds=(reader,),
            )
        os.close(reader)
        answer, _ = starter.communicate(json.dumps(spec).encode(), timeout=_START_TIMEOUT_S)
        if not answer.strip().isdigit():
            raise OSError("no keeper could be started; see logs/keeper.log")
        self._keeper = identify(int(answer))
        write_json(self._scratch / _OWNER_NAME, self._keeper)
        if not self._is_copied:
            threading.Thread(target=self._end_when_superseded, args=(self._keeper,), daemon=True).start()

    def _end_when_superseded(self, keeper: ProcessIdentity) -> None:
        """Kill what this actor has started if the record of a shared folder shows a later attempt.

        The cluster may take a node for dead that only cannot be reached; two attempts must not write to one folder.
        """
        assert self._folder is not None
        while not is_gone(keeper):
            if read_last_attempt(self._folder.record) > self._attempt:
                with suppress(OSError):
                    os.kill(keeper["pid"], signal.SIGKILL)
                kill_survivors(keeper, None)
                return
            time.sleep(_RECORD_CHECK_S)

    def _environment(self, config: Path, threads: int) -> dict[str, str]:
        """The node's, without what Ray has set for this process; the GPUs are those that Ray has assigned to it."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "__RAY"))}
        return worker_environment(inherited, RunFolder(self._path), config, threads)

    # --- while it runs

    def poll(self, offsets: Mapping[str, int], limit: int) -> NodeReport:
        """Return the state and, of a folder that is copied, what follows the offsets in files: `limit` bytes in all."""
        is_alive = self._keeper is not None and not is_gone(self._keeper)
        listing, chunks = Listing(), dict[str, bytes]()
        if self._is_copied and self._keeper is not None:
            listing = list_folder(self._path)
            # The keeper's file last: what it reports has happened to the others.
            for path in sorted(filter(is_appended, listing.files), key=lambda path: path == KEEPER_NAME):
                begin = offsets.get(path, 0)
                if limit > 0 and listing.files[path].size > begin:
                    chunks[path] = read_chunk(self._path, path, begin, limit)
                    limit -= len(chunks[path])
        inbox_size = 0 if self._folder is None else file_size(self._folder.inbox)
        lanes = tuple(lane_indices(lanes_folder(self._path))) if is_alive else ()
        is_started = self._keeper is not None
        return NodeReport(self._attempt, is_started, self._is_copied, is_alive, inbox_size, lanes, listing, chunks)

    def read(self, path: str, offset: int) -> bytes:
        return read_chunk(self._path, path, offset)

    def tell(self, offset: int, lines: bytes) -> int:
        """Append commands to the inbox, unless they are there already; return its size."""
        assert self._folder is not None
        with open(self._folder.inbox, "ab") as file:
            if file.tell() == offset:
                file.write(lines)
            return file.tell()

    def frames(self, requests: dict[int, FrameRequest]) -> dict[int, Frame]:
        """Return the newest frames of these environments that were not returned before."""
        folder = lanes_folder(self._path)
        found = {}
        for index, request in list(requests.items())[:MAX_WATCHED_LANES]:
            reader = self._readers.setdefault(index, LaneReader(folder, index))
            reader.ask(request)
            if (frame := reader.read_newest()) is not None:
                found[index] = frame
        return found

    def clean_up(self) -> None:
        """Delete the folder on this node: all of it is on the daemon's side."""
        for reader in self._readers.values():
            reader.close()
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)

    @property
    def _path(self) -> Path:
        assert self._folder is not None
        return self._folder.path


def read_last_attempt(record: Path) -> int:
    """Return the number of the last attempt in a run's record; 0 where it cannot be read, as while it is replaced."""
    try:
        return int(json.loads(record.read_bytes())["attempts"][-1]["number"])
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        return 0


def _delete_abandoned(root: Path) -> None:
    """Delete the folders of attempts that nobody follows: their actor was lost, and their keeper has ended since."""
    for folder in root.iterdir():
        with suppress(OSError, ValueError, KeyError, TypeError):
            owner = folder / _OWNER_NAME
            if owner.stat().st_mtime < time.time() - _KEPT_S and is_gone(json.loads(owner.read_text(encoding="utf-8"))):
                shutil.rmtree(folder)


def _python_version() -> str:
    return ".".join(map(str, sys.version_info[:2]))


def _node_address() -> str:
    """The address under which the cluster knows this node; outside of one, the name of the machine."""
    with suppress(Exception):
        import ray

        return str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]
    return platform.node() or socket.gethostname()
