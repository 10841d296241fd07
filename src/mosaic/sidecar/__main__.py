"""`python -m mosaic.sidecar go RUN_FOLDER`, started by the keeper; `record RUN_FOLDER` for a run that is over."""

import sys

from mosaic.sidecar.process import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
