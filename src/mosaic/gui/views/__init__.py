"""Widgets that draw and forward; they know no daemon."""
