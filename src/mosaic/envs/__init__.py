"""The catalog of environments and how to create one. Importing this package imports no environment library."""

from mosaic.envs.catalogue import FAMILIES, EnvFamily
from mosaic.envs.factory import list_environments, make

__all__ = ["FAMILIES", "EnvFamily", "list_environments", "make"]
