"""Records a run for W&B and trackio, in a separate process that does not slow down training.

It follows the run's files, logs their content to trackers, uploads while W&B can be reached, and exits after the run.
None of its failures affects the run.
"""
