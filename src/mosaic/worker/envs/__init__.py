"""The catalog of environments and how to create one. Importing this package imports no environment library."""

from mosaic.worker.envs.factory import list_environments, make
from mosaic.worker.envs.families import FAMILIES, EnvFamily

__all__ = ["FAMILIES", "EnvFamily", "list_environments", "make"]
