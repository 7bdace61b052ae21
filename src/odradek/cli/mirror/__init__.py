"""The verbs of `odradek mirror`."""
