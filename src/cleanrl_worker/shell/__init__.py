"""The process around a training: its config, its checks, its start, and scripts of the user's CleanRL."""
