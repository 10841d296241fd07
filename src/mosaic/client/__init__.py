"""Connect to the workspace's daemon, starting it where none runs; one typed method per call."""

from mosaic.client.connect import DaemonAddress, connect, connect_remote, read_daemon_address, start_daemon
from mosaic.client.trainer_client import TrainerClient

__all__ = ["DaemonAddress", "TrainerClient", "connect", "connect_remote", "read_daemon_address", "start_daemon"]
