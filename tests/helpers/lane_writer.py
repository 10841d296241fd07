"""A process that publishes solid colors as fast as it can: `lane_writer.py FOLDER LANES SIDE [SECONDS [RATE_HZ]]`.

Every byte of a frame is its number, modulo 251. It prints `ready` once its lanes exist, and at the end the number of
frames. Needs nothing but `mosaic.base.fastlane` on its path.
"""

from __future__ import annotations

import sys
import time

import numpy as np

from mosaic.base.fastlane import LaneWriter

COLORS = 251


def main() -> None:
    folder, lanes, side = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    deadline = time.monotonic() + float(sys.argv[4] if len(sys.argv) > 4 else 60)
    pause_s = 1 / float(sys.argv[5]) if len(sys.argv) > 5 else 0.0
    writers = [LaneWriter(folder, index, lane_count=lanes) for index in range(lanes)]
    frames = [np.full((side, side, 4), color, np.uint8) for color in range(COLORS)]
    number = 0
    while time.monotonic() < deadline:
        number += 1
        for writer in writers:
            writer.publish(
                frames[number % COLORS], episode=number, step=number, reward=1.0, episodic_return=2.0, render_s=0.0
            )
        if number == 1:
            print("ready", flush=True)
        time.sleep(pause_s)
    print(number, flush=True)


if __name__ == "__main__":
    main()
