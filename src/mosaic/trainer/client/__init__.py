"""Connect to the workspace's daemon, starting it where none runs; one typed method per call."""
