"""Networks and their updates, in numpy and in torch."""
