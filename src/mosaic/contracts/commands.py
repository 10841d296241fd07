"""The lines of an inbox: commands from the daemon to a run. Same format as a journal line: `seq, at, kind, …`.

`stop`: the worker saves a checkpoint and ends; after a grace period the keeper sends SIGTERM, then SIGKILL.
`pause`, `resume`: with `by_signal` false the worker acts at its next update; with true (it reads no inbox) the keeper
sends SIGSTOP and SIGCONT. `checkpoint`: the worker saves one at its next update.

Standard library only.
"""

STOP = "stop"
PAUSE = "pause"
RESUME = "resume"
CHECKPOINT = "checkpoint"

# Of a play session.
KEYS = "keys"
"""`down`: the keys that are held; `pressed`: those pressed since the last line, in order, released or not."""
ACT = "act"
"""`action` of `agent`, as from a button."""
TAKE_OVER = "take_over"
HAND_BACK = "hand_back"
"""A human takes the place of the standby actor, or leaves it to that."""
STEP = "step"
"""One step of a paused session."""
RESET = "reset"
"""Start another episode, with `seed` where given."""
RATE = "rate"
"""`rate_hz` steps per second; null: as fast as possible."""
