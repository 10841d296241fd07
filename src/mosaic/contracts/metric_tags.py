"""Tags of metrics that more than one part of MOSAIC knows."""

RETURN_TAG = "charts/episodic_return"
LENGTH_TAG = "charts/episodic_length"
"""Each episode is a point of both."""

EVAL_RETURN_TAG = "eval/episodic_return"
EVAL_LENGTH_TAG = "eval/episodic_length"
"""Each episode of an evaluation is a point of both: at the step of the training where it takes place during one."""

EVAL_MEAN_TAG = "eval/avg_return"
"""Each evaluation of several episodes is a point."""
