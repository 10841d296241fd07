"""The Python API. `import mosaic` exports it; importing this package alone loads nothing."""
