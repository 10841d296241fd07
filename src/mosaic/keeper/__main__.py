"""`python -I -S …/mosaic/keeper/__main__.py`, with the launch as one JSON object on stdin."""

import sys
from pathlib import Path

if __name__ == "__main__":
    # At the end: beside an installed `mosaic` lie other people's modules, which must not hide the standard library's.
    sys.path.append(str(Path(__file__).resolve().parents[2]))

    from mosaic.keeper.keeper_loop import main

    sys.exit(main(sys.stdin.buffer.read()))
