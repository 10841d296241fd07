"""The names of events and metrics that more than one part of MOSAIC writes or searches for, stated once.

A name is the stable code of what happened, in journals, in log files and in the window's log. `topic` groups names:
`fastlane.*` (live frames), `ui.*` (the window), `cli.*` (the command line) and `runbus.*` (the events of runs, whose
names are the kinds in `events.py`). Standard library only.
"""

from __future__ import annotations

CONTRACT_VERSION = 1
"""Version of a run's events. A worker that states another one in its handshake is refused."""

MAX_TIME = 253_402_300_799
"""The end of the year 9999, in seconds since the epoch: later times cannot be shown."""

FASTLANE_CONNECTED = "fastlane_connected"
FASTLANE_UNAVAILABLE = "fastlane_unavailable"
FASTLANE_HEADER_INVALID = "fastlane_header_invalid"
FASTLANE_FRAME_READ_ERROR = "fastlane_frame_read_error"
FASTLANE_QUEUE_DEPTH = "fastlane_queue_depth"
"""A viewer is slow: frames that were sent to it are not seen yet."""
FASTLANE_PROBLEMS = (FASTLANE_HEADER_INVALID, FASTLANE_FRAME_READ_ERROR)

UI_FORM_OPENED = "ui_form_opened"
UI_FORM_SUBMITTED = "ui_form_submitted"
UI_INVALID_CONFIG = "ui_mainwindow_invalid_config"
"""The trainer refused a config that was submitted or checked in the window."""
UI_ERROR = "ui_error"
"""Any other error that the window showed."""
TRAINER_CONNECTED = "trainer_connected"
TRAINER_LOST = "trainer_lost"

CLI_COMMAND = "cli_command"
"""A command has ended."""
CLI_ERROR = "cli_error"
"""A command printed an error."""

EVENTS_SKIPPED = "events_skipped"
"""The code of a warning: events that a slow reader did not receive."""

_GROUPS = ("fastlane", "ui", "cli")


def topic(name: str) -> str:
    """Return the topic of an event: `fastlane.connected` for `fastlane_connected`, `runbus.hello` for `hello`."""
    group, _, rest = name.partition("_")
    return f"{group}.{rest}" if group in _GROUPS and rest else f"runbus.{name}"


# --- Tags of metrics that more than one part of MOSAIC knows.


RETURN_TAG = "charts/episodic_return"
LENGTH_TAG = "charts/episodic_length"
"""Each episode is a point of both."""

EVAL_RETURN_TAG = "eval/episodic_return"
EVAL_LENGTH_TAG = "eval/episodic_length"
"""Each episode of an evaluation is a point of both: at the step of the training where it takes place during one."""

EVAL_MEAN_TAG = "eval/avg_return"
"""Each evaluation of several episodes is a point."""
