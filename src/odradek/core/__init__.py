"""Ring 2: decisions. Pure functions and state machines: snapshot in, effects out. No awaits, no clock, no chance."""
