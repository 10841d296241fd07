"""The daemon: accepts, queues, starts, follows and ends runs."""
