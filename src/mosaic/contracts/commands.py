"""The lines of an inbox: what the daemon tells a run. Same form as a journal line: `seq, at, kind, …`.

| kind | facts | who acts |
|---|---|---|
| `stop` | | the worker saves a checkpoint and ends; behind it the keeper sends SIGTERM, then SIGKILL |
| `pause`, `resume` | `by_signal`: true where the worker reads no inbox | the worker at its next update, or the keeper with SIGSTOP and SIGCONT |
| `checkpoint` | | the worker at its next update |

Standard library only.
"""

STOP = "stop"
PAUSE = "pause"
RESUME = "resume"
CHECKPOINT = "checkpoint"
