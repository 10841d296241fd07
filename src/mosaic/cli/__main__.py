"""`python -m mosaic.cli`: the command line where the program `mosaic` may not be on the path."""

from __future__ import annotations

import sys

from mosaic.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
