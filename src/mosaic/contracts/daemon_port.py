"""What client and daemon have to agree on before they talk. Standard library only."""

PORT = 50055
"""The daemon's port where no other is named."""
KEEPALIVE_S = 5.0
"""How often each side of a connection between machines checks that the other is there."""
KEEPALIVE_TIMEOUT_S = 3.0
"""How long it waits for the answer."""
REMOTE_RETRY_S = 60.0
"""How long a client tries to reach a trainer on another machine again after the connection broke."""
