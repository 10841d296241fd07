"""Data that the window shows: held here, changed here, told of by signals. No widget is imported here."""
