"""The part of the probe that runs in the script's process. Standard library and optionally numpy, Python 3.8 and up.

Nothing here may ever raise into the script: every hook is guarded, and a failure is logged once, in the journal.
"""
