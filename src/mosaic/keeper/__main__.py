"""`python -I -S …/mosaic/keeper/__main__.py`, with the launch spec as one JSON object on stdin.

With arguments, it waits for an attached process instead.
"""

import sys
from pathlib import Path

if __name__ == "__main__":
    # At the end: modules installed next to `mosaic` must not hide those of the standard library.
    sys.path.append(str(Path(__file__).resolve().parents[2]))

    if sys.argv[1:]:
        from mosaic.keeper.attached_process import wait_for_attached

        sys.exit(wait_for_attached(sys.argv[1:]))
    from mosaic.keeper.keeper_loop import main

    sys.exit(main(sys.stdin.buffer.read()))
