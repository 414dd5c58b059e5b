"""Measurements behind the claims: each file says the command that repeats it."""
