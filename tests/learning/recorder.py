"""Run CleanRL's DQN or C51 and record its transitions and updates:  python recorder.py SCRIPT OUT [flags…]

OUT.npz gets every transition in order, the indices that each update sampled, and the initial and final weights.
Standalone: it runs on CleanRL's interpreter, which does not need MOSAIC.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from tests.bench import cleanrl_runner

COLUMNS = ("observations", "next_observations", "actions", "rewards", "terminals")


def main() -> None:
    script, out = Path(sys.argv[1]).absolute(), Path(sys.argv[2])
    sys.path.insert(0, str(script.parent.parent))
    ReplayBuffer = importlib.import_module("cleanrl_utils.buffers").ReplayBuffer

    lived: list[tuple[Any, ...]] = []
    drawn: list[Any] = []
    drawn_after: list[int] = []
    parameters: list[torch.Tensor] = []
    before: dict[str, Any] = {}
    add, get = ReplayBuffer.add, ReplayBuffer._get_samples
    begin = torch.optim.Adam.__init__

    def noted_add(self: Any, *transition: Any) -> None:
        lived.append(tuple(np.array(part[0]) for part in transition[: len(COLUMNS)]))
        add(self, *transition)

    def noted_get(self: Any, places: Any, *more: Any, **named: Any) -> Any:
        drawn.append(np.array(places))
        drawn_after.append(len(lived))
        return get(self, places, *more, **named)

    def noted_begin(self: Any, chosen: Any, *more: Any, **named: Any) -> None:
        parameters.extend(chosen)
        before.update({f"before.{place}": part.detach().numpy().copy() for place, part in enumerate(parameters)})
        begin(self, parameters, *more, **named)

    ReplayBuffer.add, ReplayBuffer._get_samples = noted_add, noted_get
    torch.optim.Adam.__init__ = noted_begin  # type: ignore[assignment,method-assign]
    sys.argv = [sys.argv[0], str(script), *sys.argv[3:]]
    cleanrl_runner.main()
    found: dict[str, Any] = dict(zip(COLUMNS, map(np.stack, zip(*lived, strict=True)), strict=True))
    found |= {"drawn": np.stack(drawn), "drawn_after": np.array(drawn_after), **before}
    found |= {f"behind.{place}": part.detach().numpy() for place, part in enumerate(parameters)}
    np.savez(out, **found)


if __name__ == "__main__":
    main()
