"""`python -I -S …/mosaic/keeper/__main__.py`, with the launch spec as one JSON object on stdin.

With `--detach`, it prints its process id and runs as nobody's child; with other arguments, it waits for an attached
process instead.
"""

import os
import sys
from pathlib import Path

if __name__ == "__main__":
    # At the end: modules installed next to `mosaic` must not hide those of the standard library.
    sys.path.append(str(Path(__file__).resolve().parents[2]))

    from mosaic.keeper.launch_spec import DETACH_OPTION

    if sys.argv[1:] == [DETACH_OPTION]:
        if pid := os.fork():
            print(pid, flush=True)
            os._exit(0)
        os.setsid()
        os.dup2(2, 1)  # whoever reads the process id waits for the end of that pipe
    elif sys.argv[1:]:
        from mosaic.keeper.attached_process import wait_for_attached

        sys.exit(wait_for_attached(sys.argv[1:]))
    from mosaic.keeper.keeper_loop import main

    sys.exit(main(sys.stdin.buffer.read()))
