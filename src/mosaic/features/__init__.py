"""What a user names, one folder each. `base/features.py` finds those that are here: any can be deleted."""
