"""Fixtures of all tests of the window."""

from __future__ import annotations

from tests.helpers.gui_fixtures import make_program, program, qapp, settings_path, the_window_is_quiet

__all__ = ["make_program", "program", "qapp", "settings_path", "the_window_is_quiet"]
