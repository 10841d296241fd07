"""Runs as jobs of a Slurm cluster, whose nodes share the workspace's storage with the daemon's machine.

`executor` is what the supervisor knows. `job_queue` is a thread, as Slurm's commands may take long, and the only module
that imports submitit in the daemon. `job_task` is what a job executes on its node: it starts the keeper and waits for
it. Both sides meet in files of the run folder (`job_files`); the decisions about them are in `job_events`.
"""
