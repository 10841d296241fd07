"""Goes along with a run and records it elsewhere: W&B, trackio. A process of its own, so that training pays nothing.

It follows the run's files, feeds what they say to trackers, uploads while the network allows it, and ends by itself a
while after the run. Nothing that it does, or fails to do, reaches the run.
"""
