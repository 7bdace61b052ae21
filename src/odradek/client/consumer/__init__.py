"""Consuming: consumer, reader and what fetches for them."""
