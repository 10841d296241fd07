"""Runs on the nodes of a Ray cluster.

`executor` is the daemon's side and knows nothing of Ray. `bridge` is a child process of the daemon and the only one of
ours that is a driver of the cluster; for each attempt, `attempt` follows an actor (`node_actor`), which starts the
keeper on its node. Where both share no storage, `folder_sync` makes the run folder here equal to the one there.
"""

STREAM_VARIABLE = "MOSAIC_RAY_STREAM"
"""Environment variable of the daemon: if set, run folders are copied even where the nodes see that of the daemon."""
