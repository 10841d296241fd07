"""The words that every process shares. Importing this package costs nothing: pick the module you need.

`console`, `errors`, `folder` and `processes` are standard library only, because the keeper and the probe use them.
"""
