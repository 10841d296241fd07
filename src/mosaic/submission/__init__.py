"""Building submissions: the algorithms that workers offer, the options of a run, payloads and verdicts."""
