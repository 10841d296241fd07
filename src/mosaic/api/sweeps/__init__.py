"""Sweeps: searches for the settings of an algorithm. Only `study` imports Optuna."""
