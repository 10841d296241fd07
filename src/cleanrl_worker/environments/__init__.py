"""Vectors of environments for training: stepping, normalization, recording and restoring."""
