"""Produce decisions."""
