"""The environment families, one file each."""
