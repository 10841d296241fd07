"""Holds one run's processes: starts the worker, limits it, measures it, ends it, and writes down how it ended.

Standard library only, and started by path (`launch.keeper_command`): it must be small, quick and hard to kill.
"""
