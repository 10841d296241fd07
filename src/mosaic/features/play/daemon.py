"""Commands of play sessions."""

from __future__ import annotations

from collections.abc import AsyncIterator

from mosaic.base.limited_json import decode_limited
from mosaic.contracts import trainer_pb2 as pb
from mosaic.contracts.errors import BadInput, NotAllowed
from mosaic.contracts.play import MAX_COMMAND_BYTES, PLAY_WORKER, parse_command
from mosaic.contracts.states import Stage
from mosaic.contracts.trainer_pb2_handlers import Handlers
from mosaic.trainer.server import Context
from mosaic.trainer.services import Services


async def send_commands(
    services: Services, requests: AsyncIterator[pb.CommandRequest], context: Context
) -> pb.CommandReply:
    """Appends to the inbox of a session. Not in a thread: a key must not wait for one."""
    records, count = services.records, 0
    async for message in requests:
        run_id = records.resolve(message.run)
        record = records.active.get(run_id)
        if record is None or record.worker != PLAY_WORKER:
            raise NotAllowed(f"Run {run_id} is not a play session that is running.")
        if record.stage is Stage.QUEUED:
            raise NotAllowed(f"The session {run_id} has not started yet.")
        if len(message.fields_json) > MAX_COMMAND_BYTES:
            raise BadInput(f"The command is longer than {MAX_COMMAND_BYTES:,} bytes.")
        fields = decode_limited(message.fields_json or "{}", "The command")
        command = parse_command(message.kind, fields if isinstance(fields, dict) else {"": fields})
        records.send_command(run_id, command.kind, **command.model_dump(exclude_none=True))
        count += 1
    return pb.CommandReply(count=count)


HANDLERS: Handlers = {"SendCommands": send_commands}
