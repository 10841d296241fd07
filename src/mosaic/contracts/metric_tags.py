"""Tags of metrics that more than one part of MOSAIC knows."""

RETURN_TAG = "charts/episodic_return"
LENGTH_TAG = "charts/episodic_length"
"""Each episode is a point of both."""

EVAL_RETURN_TAG = "eval/episodic_return"
EVAL_LENGTH_TAG = "eval/episodic_length"
"""Each episode of an environment that a script only evaluates on is a point of both."""
