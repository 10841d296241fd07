"""Saved policies: finding, loading and evaluating them."""
