"""Records frames, episodes, metrics and checkpoints of user scripts without editing them.

`inside/` runs in the script's process: it is copied, with what it needs of journal, fastlane and contracts, into a
folder (`build`) on the script's PYTHONPATH (`script_env`). Everything else here runs in our own processes.
"""
