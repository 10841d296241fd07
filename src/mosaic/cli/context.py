"""What every command receives: the workspace, the form of its output, and the connection to the daemon."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from mosaic import __version__
from mosaic.base.app_log import append_log
from mosaic.base.files import describe_full_disk
from mosaic.base.handshake import REMOTE_RETRY_S
from mosaic.base.trainer_profiles import LOCAL, read_profiles
from mosaic.cli import output
from mosaic.contracts.errors import BadInput, IdentityFailed, NoDaemon
from mosaic.contracts.folder import TOKEN_VARIABLE, TRAINER_VARIABLE, WORKSPACE_VARIABLE, Workspace

if TYPE_CHECKING:
    from mosaic.contracts.views import RunView
    from mosaic.trainer.client.connect import DaemonAddress, ReconnectingClient
    from mosaic.trainer.client.remote_trainer import RemoteTrainer
    from mosaic.trainer.client.trainer_client import TrainerClient

Result = TypeVar("Result")
INTERRUPTED_EXIT_CODE = 130
"""After Ctrl-C, or where what was waited for was cancelled."""
_UNLIMITED = 10_000
TRUST_HINT = "If you trust what is in it: mosaic workspace trust"
CREATING_COMMANDS = (
    *("demo", "doctor", "envs", "train", "run", "check", "submit", "experiment check", "experiment run", "sweep run"),
    *("eval", "play", "duel", "import", "pull", "daemon start"),
)
"""Create the workspace where there is none; all others refuse it."""
YAML_SUFFIXES = (".yaml", ".yml")
"""An argument that ends like this is a file, and otherwise a name."""


class CliContext:
    """One call of the command line."""

    def __init__(self) -> None:
        self.workspace_dir: str | None = None
        self.is_json = False
        self.trainer_option: str | None = None
        """What --trainer says: a name or an address."""
        self.token_file: Path | None = None
        self.daemon_arguments: list[str] = []
        """For a daemon that this command starts."""
        self.command_name: str | None = None
        """The command that was given, once it is known to exist."""
        self.flags: dict[str, list[str]] = {}
        """The command's flags by setting, each with all its spellings."""
        self.has_submitted = False
        """Whether a run was submitted."""
        self._connection: ReconnectingClient | None = None
        self._remote: RemoteTrainer | None = None

    def __enter__(self) -> CliContext:
        return self

    def __exit__(self, *_: object) -> None:
        if self._connection is not None:
            self._connection.close()

    @cached_property
    def trainer_name(self) -> str | None:
        """The trainer on another machine that is used, by name or address; None for this machine's own.

        The first of --trainer, --var (a workspace of this machine), the environment, and the user's default counts.
        """
        if self.trainer_option is None and self.workspace_dir is not None:
            return None
        name = self.trainer_option or os.environ.get(TRAINER_VARIABLE) or read_profiles().default
        return None if name == LOCAL else name

    @property
    def is_remote(self) -> bool:
        return self.trainer_name is not None

    def require_local(self) -> None:
        """Refuses a trainer on another machine for a command that works with files or processes of this one."""
        if self.trainer_option not in (None, LOCAL):
            raise BadInput("This command works in a workspace on this machine; leave out --trainer.")
        if self.is_remote:
            raise BadInput(
                f"This command works in a workspace on this machine, and the trainer {self.trainer_name!r} is used "
                f"unless another is named. Add: --trainer {LOCAL}"
            )

    def use_local(self) -> None:
        """Ignores the user's default trainer: the command is about this machine."""
        if self.trainer_option is None and self.is_remote:
            self.trainer_option = LOCAL
            self.__dict__.pop("trainer_name")  # which was just cached
        self.require_local()

    @property
    def workspace(self) -> Workspace:
        self.require_local()
        chosen = Workspace.resolve(self.workspace_dir)
        if chosen.root.exists() and not chosen.root.is_dir():
            raise BadInput(f"The workspace {chosen.root} is a file; expected a folder. Name another: --var DIR")
        return chosen

    @property
    def is_unused(self) -> bool:
        """Whether the workspace is the one that is used unless --var names another, and was not created yet.

        A list of what it holds is empty.
        """
        return not self.is_remote and self.workspace_dir is None and not self.workspace.trainer.exists()

    def existing_workspace(self) -> Workspace:
        """Refuses one that was not created, such as one that was mistyped."""
        workspace = self.workspace
        if not workspace.trainer.exists():
            raise BadInput(f"No workspace at {workspace.root}; `mosaic train` creates one. Name another: --var DIR")
        return workspace

    def log(self, event: str, level: str = "info", **fields: object) -> None:
        """Write a line to the log of the command line, if the workspace exists."""
        with suppress(BadInput, FileNotFoundError):  # no valid path, which is what the error says that is being logged
            append_log(Workspace.resolve(self.workspace_dir).cli_log, event, level, pid=os.getpid(), **fields)

    @property
    def place(self) -> str:
        """Where the runs are, for messages."""
        return self.trainer_name or str(self.workspace.root)

    def describe_path(self, path: str) -> str:
        """A path of the trainer's as it is printed: `gpu:/home/…` where it is on another machine."""
        return f"{self.trainer_name}:{path}" if self.is_remote else path

    def add_trainer_option(self, command: str) -> str:
        """A command to be shown, with --trainer where it was given for this one."""
        return f"{command} --trainer {self.trainer_option}" if self.trainer_option else command

    def print_workspace(self) -> None:
        """Printed by commands that create or change something."""
        output.print_message(f"{'Trainer' if self.is_remote else 'Workspace'}: {self.place}")

    def print_result(self, data: object, message: str) -> None:
        """Prints `data` with --json, else the message."""
        if self.is_json:
            output.print_json(data)
        else:
            output.echo(message)

    def daemon_address(self) -> DaemonAddress | None:
        """The address of this workspace's daemon; None where none runs, or it is on another machine."""
        from mosaic.trainer.client.connect import read_daemon_address

        if self.is_remote:
            return None
        return read_daemon_address(self.workspace)

    def connect(self, may_start: bool = True) -> TrainerClient:
        """Opens a connection that the caller closes."""
        from mosaic.trainer.client.connect import (
            connect,  # imports grpc, which only commands that talk to the daemon pay for
        )

        remote = self.remote_trainer()
        if remote is not None:
            from mosaic.trainer.client.remote_trainer import connect_remote

            return connect_remote(remote)
        command = click.get_current_context(silent=True)  # none in a thread that follows a run
        words = command.command_path.split() if command else []
        is_creating = not words or words[1] in CREATING_COMMANDS or " ".join(words[1:3]) in CREATING_COMMANDS
        workspace = self.workspace if is_creating or not may_start else self.existing_workspace()
        return connect(workspace, may_start, self.daemon_arguments)

    def remote_trainer(self) -> RemoteTrainer | None:
        """How to reach the daemon on another machine; None: this workspace's own is used."""
        from mosaic.trainer.client.remote_trainer import find_remote_trainer

        if self.trainer_name is None:
            if self.token_file is not None:
                raise BadInput("--token-file goes with --trainer HOST:PORT; this machine's own trainer needs no token.")
            return None
        if self._remote is None:
            self._remote = find_remote_trainer(self.trainer_name, self.token_file)
        return self._remote

    def _connect_and_print_notes(self, may_start: bool) -> TrainerClient:
        """Connects, and prints what of the daemon a user should know: its damaged index, its other version."""
        from mosaic.base.formatting import describe_read_only
        from mosaic.base.workspace_trust import Origin, find_origin

        running = self.daemon_address()
        trainer = self.connect(may_start)
        is_new = running is None and self.daemon_address() is not None
        if is_new or (not self.is_remote and find_origin(self.workspace) is Origin.FOREIGN):
            status = trainer.get_status()
            if status.is_read_only and self.command_name not in ("workspace", "daemon"):
                output.print_message(f"{describe_read_only(status)} {TRUST_HINT}")
            for note in filter(None, (status.rebuilt_index, status.trust_problem) if is_new else ()):
                output.print_message(note)
        if running is not None and running.version != __version__:
            output.print_message(
                f"The daemon is of MOSAIC {running.version}, this command of {__version__}. "
                "Restart it, runs continue meanwhile: mosaic daemon stop"
            )
        return trainer

    def trainer(self, may_start: bool = True) -> TrainerClient:
        """The connection of this command, opened on first use."""
        return self._reconnecting(may_start).trainer()

    def runs(self, **filters: Any) -> list[RunView]:
        """The runs that match all filters, newest first."""
        return [] if self.is_unused else self.trainer().runs(**filters)

    def call_with_reconnect(self, call: Callable[[TrainerClient], Result], retry_s: float | None = None) -> Result:
        """Makes a call that may safely be made twice: a daemon that died meanwhile is started again.

        One on another machine is tried for a minute, or for `retry_s`.
        """
        return self._reconnecting().call(call, retry_s)

    def submit(
        self,
        payload: Mapping[str, Any],
        environment: Mapping[str, str] | None = None,
        is_trusted: bool = False,
        is_interrupted: Callable[[], bool] = lambda: False,
    ) -> RunView:
        """Submits a run, once, though the connection may break meanwhile; an interrupt ends the attempts."""
        from mosaic.trainer.client.trainer_client import submit_once

        has_failed = False

        def call_and_report(call: Callable[[TrainerClient], RunView]) -> RunView:
            def attempt(trainer: TrainerClient) -> RunView:
                nonlocal has_failed
                self.has_submitted = True
                try:
                    return call(trainer)
                except NoDaemon:
                    if self.is_remote and not has_failed:
                        output.print_message(
                            "The connection broke while the run was submitted; it is submitted once. Reconnecting for "
                            f"up to {REMOTE_RETRY_S:g} s."
                        )
                    has_failed = True
                    raise

            return self._reconnecting().call(attempt, is_interrupted=is_interrupted)

        return submit_once(call_and_report, payload, environment, is_trusted)

    def drop_connection(self) -> None:
        """Closes a connection that broke; the next call opens another one."""
        if self._connection is not None:
            self._connection.close()

    def _reconnecting(self, may_start: bool = True) -> ReconnectingClient:
        from mosaic.trainer.client.connect import ReconnectingClient

        if self._connection is None:
            full_disk = None if self.is_remote else describe_full_disk(self.workspace.root)
            if full_disk:
                output.print_message(full_disk)
            self._connection = ReconnectingClient(
                lambda: self._connect_and_print_notes(may_start),
                self.daemon_address,
                REMOTE_RETRY_S if self.is_remote else 0.0,
            )
        return self._connection


def _set_workspace(ctx: click.Context, _: click.Parameter, value: str | None) -> None:
    if value is not None:
        ctx.ensure_object(CliContext).workspace_dir = value


def _set_json_output(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        ctx.ensure_object(CliContext).is_json = True


def _set_trainer(ctx: click.Context, _: click.Parameter, value: str | None) -> None:
    if value is not None:
        ctx.ensure_object(CliContext).trainer_option = value


def _set_token_file(ctx: click.Context, _: click.Parameter, value: Path | None) -> None:
    if value is not None:
        ctx.ensure_object(CliContext).token_file = value


def common_options(has_json: bool = True) -> list[click.Parameter]:
    """Understood before and after a command's name alike."""
    var = click.Option(
        ["--var"],
        metavar="DIR",
        type=click.Path(file_okay=False),
        expose_value=False,
        callback=_set_workspace,
        help=f"The workspace folder.  [default: ./var, or ${WORKSPACE_VARIABLE}]",
    )
    json = click.Option(
        ["--json"],
        is_flag=True,
        expose_value=False,
        callback=_set_json_output,
        help="Print one line of JSON; everything else goes to stderr.",
    )
    trainer = click.Option(
        ["--trainer"],
        metavar="NAME|HOST[:PORT]",
        expose_value=False,
        callback=_set_trainer,
        help=f"The trainer of another machine; {LOCAL}: this one's.  [default: ${TRAINER_VARIABLE}, or as 'mosaic "
        "trainer use' says]",
    )
    token_file = click.Option(
        ["--token-file"],
        metavar="FILE",
        type=click.Path(path_type=Path, dir_okay=False),
        expose_value=False,
        callback=_set_token_file,
        help=f"That trainer's daemon.json or remote_token, copied here.  [default: what 'mosaic trainer add' stored, "
        f"or ${TOKEN_VARIABLE}]",
    )
    return [var, trainer, token_file, *([json] if has_json else [])]


class Command(click.Command):
    """A command that knows the common options."""

    def __init__(self, *args: Any, has_json: bool = True, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params = [*self.params, *common_options(has_json)]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        options = (param for param in self.params if isinstance(param, click.Option) and param.name)
        ctx.ensure_object(CliContext).flags = {
            str(option.name): [flag for flag in option.opts if flag.startswith("--")] for option in options
        }
        return super().parse_args(ctx, args)

    def get_short_help_str(self, limit: int = 0) -> str:
        """The whole first sentence, which a list of commands wraps and click would cut."""
        return super().get_short_help_str(limit=_UNLIMITED)


def command(name: str | None = None, **attributes: Any) -> Callable[[Callable[..., Any]], Command]:
    return click.command(name, cls=Command, **attributes)


pass_context = click.make_pass_decorator(CliContext, ensure=True)


# --- What a command says and does while the trainer of the run that it follows cannot be reached.


class Outage:
    """The time since a connection broke. Used by one thread."""

    def __init__(self, context: CliContext, attach_command: str, now: Callable[[], float] = time.monotonic) -> None:
        """`attach_command` continues what is being followed."""
        self._context = context
        self._attach_command = attach_command
        self._now = now
        self._since: float | None = None

    def note_failure(self, error: NoDaemon) -> str | None:
        """Return what to tell the user, once; raise when it has lasted too long, or cannot end by waiting."""
        remote = self._context.remote_trainer()
        is_new = self._since is None
        self._since = self._now() if self._since is None else self._since
        is_over = self._now() - self._since > REMOTE_RETRY_S
        if remote is None:
            if is_over:
                raise error
            return None  # it is started again, meanwhile nothing is lost
        if isinstance(error, IdentityFailed):
            raise error
        if is_over:
            raise NoDaemon(
                f"The trainer {remote.label} could not be reached for {REMOTE_RETRY_S:g} s. What it runs continues "
                f"there. Attach again: {self._context.add_trainer_option(self._attach_command)}"
            ) from error
        return (
            f"The connection to the trainer {remote.label} broke. What it runs continues; reconnecting for up to "
            f"{REMOTE_RETRY_S:g} s."
            if is_new
            else None
        )

    def note_success(self) -> str | None:
        """Return what to tell the user where it was broken."""
        was_broken, self._since = self._since is not None, None
        return "Connected again." if was_broken and self._context.is_remote else None
