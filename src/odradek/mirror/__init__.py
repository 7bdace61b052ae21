"""Copies topics and groups from one cluster to another, exactly once."""
