"""The training loops, each stated once; an algorithm's file supplies what is special about it."""
