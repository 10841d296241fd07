"""Supervises one run's processes: starts the worker, enforces limits, samples usage, ends it and records the exit.

Standard library only, and started by path (`launch_spec.keeper_command`): it must be small, fast and hard to kill.
"""
