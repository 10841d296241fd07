"""Sends commands, such as keys, to a play session: one stream for as long as someone plays."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from typing import TYPE_CHECKING, Self

import grpc

from mosaic.contracts import trainer_pb2 as pb
from mosaic.contracts.errors import MosaicError

if TYPE_CHECKING:
    from mosaic.client.daemon_channel import DaemonChannel
    from mosaic.contracts.play_commands import SessionCommand

CLOSE_TIMEOUT_S = 5.0


class SessionControl:
    """`send` never blocks. What the daemon refuses ends the stream, and is raised by the next `send`."""

    def __init__(self, daemon: DaemonChannel, run_id: str) -> None:
        self._run_id = run_id
        self._daemon = daemon
        self._waiting: queue.SimpleQueue[pb.CommandRequest | None] = queue.SimpleQueue()
        self._call = daemon.send_stream("SendCommands", self._requests())

    def _requests(self) -> Iterator[pb.CommandRequest]:
        return iter(self._waiting.get, None)

    def send(self, command: SessionCommand) -> None:
        if self._call.done():
            raise self._error() or MosaicError("The session accepts no more commands.")
        fields = command.model_dump_json(exclude_defaults=True)
        self._waiting.put(pb.CommandRequest(run=self._run_id, kind=command.kind, fields_json=fields))

    def _error(self) -> MosaicError | None:
        try:
            self._call.result(timeout=0)
        except grpc.RpcError as error:
            return self._daemon.to_error(error)
        except grpc.FutureTimeoutError:
            return None
        return None

    def end(self) -> None:
        """End the stream after what was sent, without waiting for that."""
        self._waiting.put(None)

    def close(self) -> None:
        """Wait until everything was sent; raise what was refused."""
        self.end()
        try:
            self._call.result(timeout=CLOSE_TIMEOUT_S)
        except grpc.RpcError as error:
            raise self._daemon.to_error(error) from None
        except grpc.FutureTimeoutError:
            self._call.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self._waiting.put(None)
            self._call.cancel()
