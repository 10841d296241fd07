"""What every command is handed: the workspace, how to answer, and the way to the daemon."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from mosaic.contracts.errors import BadInput, NoDaemon
from mosaic.contracts.folder import WORKSPACE_VARIABLE, Workspace

if TYPE_CHECKING:
    from mosaic.client import DaemonAddress, Trainer

Answer = TypeVar("Answer")


class Door:
    """One call of the command line."""

    def __init__(self) -> None:
        self.var: str | None = None
        self.is_json = False
        self._trainer: Trainer | None = None
        self._connected_to: DaemonAddress | None = None

    def __enter__(self) -> Door:
        return self

    def __exit__(self, *_: object) -> None:
        if self._trainer is not None:
            self._trainer.close()
            self._trainer = None

    @property
    def workspace(self) -> Workspace:
        chosen = Workspace.chosen(self.var)
        if chosen.root.exists() and not chosen.root.is_dir():
            raise BadInput(f"The workspace {chosen.root} is a file; expected a folder. Name another: --var DIR")
        return chosen

    def announce(self) -> None:
        """Commands that make or change something say where."""
        click.echo(f"Workspace: {self.workspace.root}", err=True)

    def address(self) -> DaemonAddress | None:
        """Where this workspace's daemon is; none when none lives."""
        from mosaic.client import read_address

        try:
            return read_address(self.workspace)
        except OSError as error:
            raise self._unusable(error) from None

    def connect(self, may_start: bool = True) -> Trainer:
        """A connection of the caller's own."""
        from mosaic.client import connect  # imports grpc, which only commands that talk to the daemon pay for

        try:
            return connect(self.workspace, may_start)
        except OSError as error:
            raise self._unusable(error) from None

    def _unusable(self, error: OSError) -> BadInput:
        return BadInput(
            f"The workspace {self.workspace.root} cannot be used: {error.strerror}. Name another: --var DIR"
        )

    def trainer(self, may_start: bool = True) -> Trainer:
        """The connection of this call, made when it is first needed."""
        if self._trainer is None:
            self._trainer = self.connect(may_start)
            self._connected_to = self.address()
        return self._trainer

    def ask(self, call: Callable[[Trainer], Answer]) -> Answer:
        """Asks something that may safely be asked twice: a daemon that died meanwhile is started again."""
        if self.address() != self._connected_to:
            self.__exit__()  # another daemon may have taken the port, and does not know our token
        try:
            return call(self.trainer())
        except NoDaemon:
            self.__exit__()
            return call(self.trainer())


def _chosen_workspace(ctx: click.Context, _: click.Parameter, value: str | None) -> None:
    if value is not None:
        ctx.ensure_object(Door).var = value


def _chosen_json(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        ctx.ensure_object(Door).is_json = True


def common_options(has_json: bool = True) -> list[click.Parameter]:
    """Understood before and after a command's name alike."""
    var = click.Option(
        ["--var"],
        metavar="DIR",
        type=click.Path(file_okay=False),
        expose_value=False,
        callback=_chosen_workspace,
        help=f"The workspace: where everything is kept.  [default: ./var, or ${WORKSPACE_VARIABLE}]",
    )
    json = click.Option(
        ["--json"],
        is_flag=True,
        expose_value=False,
        callback=_chosen_json,
        help="Print one line of JSON; everything else goes to stderr.",
    )
    return [var, json] if has_json else [var]


class Command(click.Command):
    """A command that knows the common options."""

    def __init__(self, *args: Any, has_json: bool = True, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params = [*self.params, *common_options(has_json)]


def command(name: str | None = None, **attributes: Any) -> Callable[[Callable[..., Any]], Command]:
    return click.command(name, cls=Command, **attributes)


pass_door = click.make_pass_decorator(Door, ensure=True)
