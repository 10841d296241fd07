"""Data that processes share. Importing this package costs nothing: pick the module you need.

`errors`, `folder` and `process_identity` are standard library only, because the keeper and the probe use them.
"""
