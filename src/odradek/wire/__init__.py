"""Ring 1: bytes <-> values. No event loop, socket, clock, chance or thread."""
