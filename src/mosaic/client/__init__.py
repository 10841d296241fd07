"""Connect to the workspace's daemon, starting it where none runs; one typed method per call."""

from mosaic.client.connect import DaemonAddress, connect, read_daemon_address, read_lock_owner, start_daemon
from mosaic.client.remote_trainer import RemoteTrainer, connect_remote
from mosaic.client.trainer_client import TrainerClient

__all__ = [
    "DaemonAddress",
    "RemoteTrainer",
    "TrainerClient",
    "connect",
    "connect_remote",
    "read_daemon_address",
    "read_lock_owner",
    "start_daemon",
]
