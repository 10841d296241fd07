"""`python -m mosaic.arena.replay_worker verify|play|export FILE …`: replays recorded episodes.

`verify FILE [EPISODE…]` prints a `ReplayReport` per episode as a line of JSON; `play FILE` is a player that answers
requests; `export FILE TARGET` writes an .mp4, .gif or .jsonl and prints its progress. A failure is a `ReplayFailed` as
the last line. A process of its own: the command line and the window import no environment, and an environment that
crashes takes nothing else with it.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from mosaic.arena.replay_player import ReplayPlayer, RequestQueue
from mosaic.arena.replay_source import ReplaySource
from mosaic.contracts.errors import MosaicError
from mosaic.contracts.replays import ReplayFailed, ReplayMessage


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m mosaic.arena.replay_worker", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("verify", "play", "export"):
        command = commands.add_parser(name)
        command.add_argument("recording", type=Path)
        if name == "verify":
            command.add_argument("episodes", type=int, nargs="*")
    args = parser.parse_args(argv)
    faulthandler.enable()
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # libraries print to stdout

    def reply(message: ReplayMessage) -> None:
        replies.write(message.model_dump_json().encode() + b"\n")
        replies.flush()

    try:
        with ReplaySource(args.recording) as source:
            if args.command == "play":
                ReplayPlayer(source, RequestQueue(sys.stdin), replies).serve()
            else:
                for number in args.episodes or source.recording.numbers:
                    reply(source.verify(number))
    except BrokenPipeError:
        return 1  # the reader has gone
    except MosaicError as error:
        reply(ReplayFailed(error=type(error).__name__, message=str(error)))
        return 2
    except Exception as error:
        # An environment may raise anything; the traceback is on stderr.
        reply(ReplayFailed(error="MosaicError", message=f"The replay failed: {type(error).__name__}: {error}"))
        raise
    return 0


if __name__ == "__main__":
    sys.exit(main())
