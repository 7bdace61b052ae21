"""Producing: records in, results out."""
