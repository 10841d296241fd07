"""Data that the window shows: stored and changed here, published by signals. No widget is imported here."""
