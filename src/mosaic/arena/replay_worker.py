"""`python -m mosaic.arena.replay_worker FILE [EPISODE…]`: simulates recorded episodes again.

Prints one line of JSON per episode: a `ReplayReport`, or `{"error": …}` as the last line. A process of its own: the
command line and the window import no environment, and an environment that crashes takes nothing else with it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from mosaic.arena.play_envs import make_play_env
from mosaic.arena.recording import Recording
from mosaic.arena.simulation import describe_version_changes, verify
from mosaic.contracts.errors import MosaicError
from mosaic.envs.factory import find_family


def main(argv: Sequence[str]) -> int:
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries print to stdout
    try:
        with Recording(Path(argv[0])) as recording:
            env = make_play_env(recording.header)
            warnings = describe_version_changes(recording.header, find_family(recording.header.env_id))
            if recording.problem is not None:
                warnings.append(recording.problem)
            for number in [int(text) for text in argv[1:]] or recording.numbers:
                print(verify(env, recording.episode(number), warnings).model_dump_json(), file=replies, flush=True)
            env.close()
    except MosaicError as error:
        print(json.dumps({"error": type(error).__name__, "message": str(error)}), file=replies, flush=True)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
