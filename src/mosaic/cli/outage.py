"""What a command says and does while the trainer of the run that it follows cannot be reached."""

from __future__ import annotations

import time
from collections.abc import Callable

from mosaic.cli.cli_context import CliContext
from mosaic.contracts.daemon_port import REMOTE_RETRY_S
from mosaic.contracts.errors import IdentityFailed, NoDaemon


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
