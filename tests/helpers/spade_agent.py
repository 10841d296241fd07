"""`spade_agent.py NAME PORT FILE`: an agent of SPADE-BDI. Prints `ready`, then each number that it receives."""

import asyncio
import sys
from collections.abc import Iterator
from typing import Any

import agentspeak
import spade
from spade_bdi.bdi import BDIAgent


class Reporter(BDIAgent):  # type: ignore[misc]
    def add_custom_actions(self, actions: Any) -> None:
        @actions.add("report", 1)  # type: ignore[untyped-decorator]
        def report(agent: Any, term: Any, intention: Any) -> Iterator[None]:
            print(agentspeak.grounded(term.args[0], intention.scope), flush=True)
            yield


async def live(name: str, port: int, file: str) -> None:
    agent = Reporter(f"{name}@localhost", "password", file, port=port)
    await agent.start()
    print("ready", flush=True)
    await asyncio.Event().wait()


spade.run(live(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
