"""Connect to the workspace's daemon, starting it where none runs; one typed method a verb."""

from mosaic.client.connect import DaemonAddress, connect, connect_to, read_address, start_daemon
from mosaic.client.trainer import Trainer

__all__ = ["DaemonAddress", "Trainer", "connect", "connect_to", "read_address", "start_daemon"]
