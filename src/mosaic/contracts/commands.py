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
