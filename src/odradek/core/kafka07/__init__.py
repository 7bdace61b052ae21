"""Decisions of the 0.7 protocol."""
