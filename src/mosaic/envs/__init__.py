"""Which environments there are and how to make one. Importing this package imports no environment library."""

from mosaic.envs.catalogue import FAMILIES, Family
from mosaic.envs.factory import list_environments, make

__all__ = ["FAMILIES", "Family", "list_environments", "make"]
