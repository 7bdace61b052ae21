"""Fetch decisions."""
