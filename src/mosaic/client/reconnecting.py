"""A connection to the daemon that is opened on first use and survives a restart of the daemon."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from mosaic.contracts.errors import NoDaemon

if TYPE_CHECKING:
    from mosaic.client.connect import DaemonAddress
    from mosaic.client.trainer_client import TrainerClient

Result = TypeVar("Result")


class ReconnectingClient:
    """`open_client` connects; `read_address` returns where the daemon is now, None where that cannot be read."""

    def __init__(
        self, open_client: Callable[[], TrainerClient], read_address: Callable[[], DaemonAddress | None]
    ) -> None:
        self._open_client = open_client
        self._read_address = read_address
        self._trainer: TrainerClient | None = None
        self._connected_address: DaemonAddress | None = None

    def trainer(self) -> TrainerClient:
        """Return the connection, opening it first where there is none."""
        if self._trainer is None:
            self._trainer = self._open_client()
            self._connected_address = self._read_address()
        return self._trainer

    def call(self, call: Callable[[TrainerClient], Result]) -> Result:
        """Make a call that may safely be made twice: where the daemon has died, it is started and called again."""
        if self._trainer is not None and self._read_address() != self._connected_address:
            self.close()  # another process may have taken the port, and does not know our token
        try:
            return call(self.trainer())
        except NoDaemon:
            self.close()
            return call(self.trainer())

    def close(self) -> None:
        if self._trainer is not None:
            self._trainer.close()
            self._trainer = None
