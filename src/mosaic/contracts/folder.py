"""Every path of a workspace and of a run, stated once. Standard library only."""

from __future__ import annotations

import errno
import os
import pwd
import re
import stat
from contextlib import suppress
from pathlib import Path

from mosaic.contracts.errors import BadInput

RUN_DIR_VARIABLE = "MOSAIC_RUN_DIR"
"""Environment variable: the worker's run folder."""
INBOX_OFFSET_VARIABLE = "MOSAIC_INBOX_OFFSET"
"""Environment variable: byte offset in the inbox at which this attempt starts."""
KEEPER_VARIABLE = "MOSAIC_KEEPER"
"""Environment variable: the keeper of a run's processes, by which those that outlive it are found."""
TENSORBOARD_VARIABLE = "CLEANRL_TENSORBOARD_DIR"
"""Environment variable: where a worker writes its event files."""
CALLER_VARIABLE = "MOSAIC_CALLER"
"""Environment variable: the submitter's environment as JSON, for the submitter's own programs."""
MODULES_VARIABLE = "MOSAIC_ENV_MODULES"
"""Environment variable: modules, separated by commas, that an id such as `my_envs:Maze-v0` may import."""
TOKEN_VARIABLE = "MOSAIC_TOKEN"
"""Environment variable: the token of the daemon."""
EXECUTOR_VARIABLE = "MOSAIC_EXECUTOR"
"""Environment variable: where a daemon starts runs that name no executor."""
TRAINER_VARIABLE = "MOSAIC_TRAINER"
"""Environment variable: the trainer that commands use, by name or address."""
WORKSPACE_VARIABLE = "MOSAIC_VAR"
"""Environment variable: the workspace."""
TRUST_VARIABLE = "MOSAIC_TRUST"
"""Environment variable: workspaces, separated by colons, that are opened whoever created them."""
PLAY_SUMMARY_NAME = "play_summary.json"
RECORDING_NAME = "recording.bin"
"""In a run's folder: the episodes that it recorded."""
REPLAY_PREFIX = "replay."
"""In a checkpoint: begins the names of arrays and files that hold a replay buffer, which only resuming needs."""
PENDING_PARTS_DIR = ".parts.tmp"
"""In the folder of checkpoints: holds files of a replay buffer that may not belong to a checkpoint yet."""
MAX_NAME_BYTES = 200
"""Of a derived file name; file systems allow 255, of which a suffix may need some."""
PRUNED_PREFIX = ".pruned-"
"""Begins the names of folders, next to those of runs, with what is being deleted."""
RESERVED_RUN_IDS = ("last", "best")
"""Words that commands take in place of a run or a checkpoint."""


def is_run_id(text: str) -> bool:
    """Whether a run can have this id: it names a folder, and a person types it in a shell.

    The daemon gives ULIDs; a worker that is started by hand may be given another id.
    """
    return re.fullmatch(r"[0-9A-Za-z_][0-9A-Za-z_.-]{0,63}", text) is not None and text.lower() not in RESERVED_RUN_IDS


def validate_run_id(value: str) -> str:
    if not is_run_id(value):
        taken = " or ".join(RESERVED_RUN_IDS)
        raise ValueError(f"expected up to 64 letters, digits, _, . and -, not beginning with . or -, and not {taken}")
    return value


def read_regular_file(path: Path) -> bytes:
    """Return what a file of a run folder holds; OSError also where it is a pipe or a device, which may never end."""
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is not a file", str(path))
    return path.read_bytes()


def to_file_name(text: str) -> str:
    """An environment id or run name as one path component: `ALE/Pong-v5` becomes `ALE_Pong-v5`."""
    name = text.replace("/", "_").replace("\\", "_").replace("\0", "_").lstrip(".") or "_"
    return name.encode()[:MAX_NAME_BYTES].decode(errors="ignore")


def user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:  # a container may have no entry for it
        return f"user {uid}"


class Workspace:
    """One folder that holds everything: `var/` by default."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root).absolute()
        self.trainer = self.root / "trainer"
        """What the daemon manages."""
        self.configs = self.trainer / "configs"
        """Copies of configs, for inspection."""
        self.runs = self.trainer / "runs"
        """One folder for each run."""
        self.trash = self.trainer / "trash"
        """Deleted runs, for 30 days."""
        self.sweeps = self.trainer / "sweeps"
        """Studies of sweeps, one folder each."""
        self.probe = self.trainer / "probe"
        """Probes that run inside users' scripts, one folder per version."""
        self.trackio = self.root / "trackio"
        """What trackio's dashboard shows, of all runs together."""
        self.logs = self.root / "logs"
        """Logs of the daemon, the command line, the window and the checkers."""
        self.index = self.trainer / "index.sqlite"
        """What the daemon has read from the folders; can be deleted, and is rebuilt from them."""
        self.daemon_file = self.trainer / "daemon.json"
        """Address, token and process of the daemon; 0600."""
        self.tls_identity = self.trainer / "tls_identity.pem"
        """Key and certificate of a daemon that other machines reach; 0600."""
        self.remote_token = self.trainer / "remote_token"
        """What clients on other machines need; 0600."""
        self.metrics_token = self.trainer / "metrics_token"
        """What a Prometheus on another machine needs; 0600. It allows nothing else."""
        self.certificate = self.trainer / "certificate.pem"
        """The certificate of `tls_identity.pem` without its key, for that Prometheus."""
        self.daemon_lock = self.trainer / "daemon.lock"
        """Held by the only daemon of the workspace."""
        self.reserve = self.trainer / "reserve"
        """Deleted by a daemon that starts on a full disk, for the files it needs."""
        self.daemon_log = self.logs / "trainer.log"
        """The log of the daemon."""
        self.daemon_console = self.logs / "trainer.console.log"
        """What daemons that were started by commands have printed."""
        self.cli_log = self.logs / "cli.log"
        """Commands that were run, with their exit codes."""
        self.gui_log = self.logs / "gui.log"
        """The log of the window."""

    @classmethod
    def resolve(cls, path: str | os.PathLike[str] | None = None) -> Workspace:
        workspace = cls(path or os.environ.get(WORKSPACE_VARIABLE) or "var")
        try:
            str(workspace.root).encode()
        except UnicodeEncodeError:
            raise BadInput(
                f"The path of the workspace, {os.fsencode(workspace.root)!r}, is not valid UTF-8. "
                f"Name another: --var DIR or {WORKSPACE_VARIABLE}"
            ) from None
        workspace.require_own()
        return workspace

    @classmethod
    def containing(cls, folder: RunFolder) -> Workspace:
        """The workspace that contains a run folder."""
        return cls(folder.origin.parents[2])

    def create_private(self) -> None:
        """Creates its folders, which only their owner may enter; changes those of an earlier version."""
        self.require_own()
        for folder in (self.root, self.trainer, self.logs, self.configs):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for folder in {self.root, self.trainer, self.logs} - self._shared_folders():
            with suppress(PermissionError):  # of a file system without modes
                folder.chmod(0o700)

    def _shared_folders(self) -> set[Path]:
        """Its root where that holds other things, such as a project or /tmp: the modes of such a folder stay."""
        own = {self.trainer.name, self.logs.name, self.trackio.name, ".env"}
        return set() if own.issuperset(os.listdir(self.root)) else {self.root}

    @property
    def is_named_trusted(self) -> bool:
        """Whether the environment names it among the workspaces to be opened whoever created them."""
        named = os.environ.get(TRUST_VARIABLE, "").split(os.pathsep)
        return os.path.realpath(self.root) in [os.path.realpath(path) for path in named if os.path.isabs(path)]

    def require_own(self) -> None:
        """Refuses what another user prepared or can change, before anything of it is read.

        The right to write in folders and files of this user's is taken from others: `umask 002` may have given it.
        """
        if self.is_named_trusted or not os.path.lexists(self.root):
            return
        folders = (self.root, self.trainer, self.runs, self.trash, self.logs)
        files = (self.daemon_file, self.daemon_lock, self.index, self.reserve)
        keys = (self.tls_identity, self.remote_token, self.metrics_token)
        logs = (self.daemon_log, self.daemon_console, self.cli_log, self.gui_log)
        for path in (*folders, *files, *keys, *logs):
            with suppress(FileNotFoundError, NotADirectoryError):
                self._require_own_path(path)

    def _require_own_path(self, path: Path) -> None:
        user, other = os.geteuid(), f"name your own: --var DIR or {WORKSPACE_VARIABLE}"
        status = path.lstat()
        owners = {status.st_uid}
        if stat.S_ISLNK(status.st_mode) and path != self.root:
            raise BadInput(f"{path} is a symbolic link, which could lead anywhere. Replace it, or {other}")
        if stat.S_ISLNK(status.st_mode):
            status = path.stat()
            owners.add(status.st_uid)
        if others := owners - {user, 0}:
            what = f"The workspace {path}" if path == self.root else str(path)
            raise BadInput(f"{what} belongs to {user_name(others.pop())}; {other}")
        mode = stat.S_IMODE(status.st_mode)
        if not mode & (stat.S_IWGRP | stat.S_IWOTH):
            return
        if status.st_uid == user and not (path == self.root and self._shared_folders()):
            with suppress(PermissionError):  # of a file system without modes
                path.chmod(mode & ~(stat.S_IWGRP | stat.S_IWOTH))
            return
        # With `umask 002`, the group is the user's own; with a sticky bit, nobody replaces what is another's.
        is_own_group = status.st_uid == user and status.st_gid == os.getegid() and not mode & stat.S_IWOTH
        if not (path == self.root and (is_own_group or mode & stat.S_ISVTX)):
            raise BadInput(f"Other users can replace what is in {path}. Run: chmod go-w {path}; or {other}")

    def exports(self, run_id: str) -> Path:
        """Where clients on this machine save what they make of a run: figures, images, recorded videos."""
        return self.root / "exports" / run_id

    def run(self, run_id: str) -> RunFolder:
        return RunFolder(self.runs / run_id)

    def payload_copy(self, run_id: str, is_evaluation: bool = False) -> Path:
        return self.configs / f"config-{run_id}{'-policy' if is_evaluation else ''}.json"

    def worker_config(self, run_id: str, slot: int) -> Path:
        return self.configs / f"worker-{run_id}-{slot}.json"


def _open_folder(path: str | os.PathLike[str]) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def _descriptor_path(descriptor: int) -> Path:
    return Path(f"/proc/{os.getpid()}/fd/{descriptor}")


class RunFolder:
    """One run. Every file has exactly one writer; see docs/reference/files.md."""

    def __init__(self, path: str | os.PathLike[str], descriptor: int | None = None) -> None:
        """`descriptor`: an open one of the folder; see `hold`."""
        self.origin = Path(path).absolute()
        """Where it was when this object was made: what other programs are told."""
        self._descriptor = descriptor
        self.path = self.origin if descriptor is None else _descriptor_path(descriptor)
        self.run_id = self.origin.name
        # the daemon
        self.config = self.path / "config.json"
        """The payload as it was accepted."""
        self.record = self.path / "record.json"
        """Stage, outcome, history, attempts and tags; replaced by rename."""
        self.inbox = self.path / "inbox.jsonl"
        """Commands to the worker."""
        # the keeper
        self.keeper = self.path / "keeper.jsonl"
        """Processes, samples of CPU, memory and GPU, the machine, commits of the user's code, the exit status."""
        self.logs = self.path / "logs"
        """What the worker wrote to stdout and stderr, and in which order; the sidecar's log."""
        # the sidecar, or `mosaic wandb sync`
        self.sidecar = self.path / "sidecar.jsonl"
        """What was recorded and uploaded."""
        self.wandb = self.path / "wandb"
        """W&B's own files."""
        self.wandb_ledger = self.wandb / "sync.json"
        """Which of them W&B has received."""
        # the worker
        self.journal = self.path / "journal.jsonl"
        """The events of the run; further processes of a program write `journal.<pid>.jsonl`."""
        self.analytics = self.path / "analytics.json"
        """Where its videos, models, checkpoints and evaluations are."""
        self.checkpoints = self.path / "checkpoints"
        """A folder for each step: `weights.safetensors`, `state.npz` and `manifest.json` with the hashes of both."""
        self.last_checkpoint = self.checkpoints / "last"
        """A link to the newest."""
        self.best_checkpoint = self.checkpoints / "best"
        """A link to the one with the highest mean return."""
        self.tensorboard = self.path / "tensorboard"
        """Event files."""
        self.tensorboard_eval = self.path / "tensorboard_eval"
        """Event files of an evaluation."""
        self.videos = self.path / "videos"
        """Recorded episodes."""
        self.eval_videos = self.videos / f"{self.run_id}-eval"
        """Those of an evaluation."""
        self.eval_summary = self.path / "eval_summary.json"
        """The batches of an evaluation, with their statistics."""
        self.play_summary = self.path / PLAY_SUMMARY_NAME
        """Returns and totals of a play session."""
        self.session_state = self.path / "session.json"
        """What the window shows of a play session besides its frames."""
        self.recording = self.path / RECORDING_NAME
        """Episodes that can be simulated again."""
        self.models = self.path / "runs"
        """The model in CleanRL's format: `<name>/<algo>.cleanrl_model`."""
        # `mosaic push` and `mosaic pull`
        self.hub = self.path / "hub"
        """Where the policy was pushed; card and evaluation of a pulled one."""

    @classmethod
    def hold(cls, path: str | os.PathLike[str]) -> RunFolder:
        """Open the folder: all paths lead to it as long as this process lives, wherever it is moved meanwhile.

        They can be used by child processes, too. Without Linux's /proc, they are those of a folder that is not open.
        """
        try:
            descriptor = _open_folder(path)
        except FileNotFoundError:
            return cls(path)
        with suppress(OSError):
            if os.path.samestat(os.stat(_descriptor_path(descriptor)), os.fstat(descriptor)):
                return cls(path, descriptor)
        os.close(descriptor)
        return cls(path)

    def reopen_if_deleted(self) -> bool:
        """Lead to the folder that the daemon creates in place of one that was deleted; return whether it did now."""
        if self._descriptor is None or os.fstat(self._descriptor).st_nlink:
            return False
        try:
            descriptor = _open_folder(self.origin)
        except OSError:  # it is not there yet
            return False
        os.dup2(descriptor, self._descriptor, inheritable=False)
        os.close(descriptor)
        return True

    def to_readable(self, text: str) -> str:
        """Replace paths by descriptor in a text for people by where the folder is now."""
        if self._descriptor is None:
            return text
        return text.replace(str(self.path), os.path.realpath(self.path))

    def stdout_log(self, log_name: str) -> Path:
        return self.logs / f"{log_name}.stdout.log"

    def stderr_log(self, log_name: str) -> Path:
        return self.logs / f"{log_name}.stderr.log"

    def log_order(self, log_name: str) -> Path:
        """In which order the two logs were written; see `base/log_order.py`."""
        return self.logs / f"{log_name}.order"

    def to_portable(self, path: str | os.PathLike[str]) -> str:
        """A path as the run's files state it: relative inside of the workspace's runs, so that a copy can use it."""
        path = os.path.abspath(path)
        for folder, near in ((self.path, self.path), (self.origin, self.origin.parent)):
            if f"{path}{os.sep}".startswith(f"{near}{os.sep}"):
                return os.path.relpath(path, folder)
        return path

    def from_portable(self, path: str) -> str:
        """The inverse of `to_portable`."""
        inside = os.path.normpath(self.path / path)
        return inside if inside.startswith(str(self.path)) else os.path.normpath(self.origin / path)

    def checkpoint(self, step: int) -> Path:
        return self.checkpoints / str(step)

    def model(self, run_name: str, algo: str) -> Path:
        """The model file in CleanRL's format."""
        return self.models / to_file_name(run_name) / f"{to_file_name(algo)}.cleanrl_model"

    def journals(self) -> list[Path]:
        """The worker's journal and those of further processes of the run."""
        return [self.journal, *sorted(self.path.glob("journal.*.jsonl"))]
