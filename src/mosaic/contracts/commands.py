"""The lines of an inbox: commands from the daemon to a run. Same format as a journal line: `seq, at, kind, …`.

`stop`: the worker saves a checkpoint and ends; after a grace period the keeper sends SIGTERM, then SIGKILL. While the
journal says that the worker is writing a checkpoint, the keeper waits; another `stop` ends that wait.
`pause`, `resume`: with `by_signal` false the worker acts at its next update; with true (it reads no inbox) the keeper
sends SIGSTOP and SIGCONT. `checkpoint`: the worker saves one at its next update.

Standard library only.
"""

STOP = "stop"
PAUSE = "pause"
RESUME = "resume"
CHECKPOINT = "checkpoint"

CHECKPOINT_LIMIT_S = 600.0
"""How long after a stop a checkpoint may still be written, as one with a large replay buffer to a network disk."""
