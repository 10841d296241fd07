"""Tags of metrics that more than one part of MOSAIC knows."""

RETURN_TAG = "charts/episodic_return"
LENGTH_TAG = "charts/episodic_length"
"""Each episode is a point of both."""
