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
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from mosaic.arena.replay_export import export_episodes
from mosaic.arena.replay_player import ReplayPlayer, RequestQueue
from mosaic.arena.replay_source import ReplaySource
from mosaic.contracts.errors import BadInput, MosaicError
from mosaic.contracts.replays import ExportProgress, ReplayFailed, ReplayMessage

REPORT_S = 0.2
"""Interval between two reports of an export's progress."""


def _export(source: ReplaySource, args: argparse.Namespace, reply: Callable[[ReplayMessage], None]) -> None:
    numbers = source.recording.numbers if args.episode is None else [args.episode]
    if not numbers:
        raise BadInput("The recording has no episodes yet.")
    total = sum(len(source.recording.episode(number)) for number in numbers)
    next_at = 0.0

    def on_step(done: int) -> None:
        nonlocal next_at
        if time.monotonic() >= next_at or done == total:
            next_at = time.monotonic() + REPORT_S
            reply(ExportProgress(done=done, total=total))

    for report in export_episodes(source, args.target, numbers, on_step, args.observations):
        reply(report)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m mosaic.arena.replay_worker", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("verify", "play", "export"):
        command = commands.add_parser(name)
        command.add_argument("recording", type=Path)
        if name == "verify":
            command.add_argument("episodes", type=int, nargs="*")
        if name == "export":
            command.add_argument("target", type=Path)
            command.add_argument("--episode", type=int)
            command.add_argument("--observations", action="store_true")
    args = parser.parse_args(argv)
    faulthandler.enable()
    # An export removes its incomplete file. And SDL, which renders some environments, would ignore the signal.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # libraries print to stdout

    def reply(message: ReplayMessage) -> None:
        replies.write(message.model_dump_json().encode() + b"\n")
        replies.flush()

    try:
        with ReplaySource(args.recording) as source:
            if args.command == "play":
                ReplayPlayer(source, RequestQueue(sys.stdin), replies).serve()
            elif args.command == "export":
                _export(source, args, reply)
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
