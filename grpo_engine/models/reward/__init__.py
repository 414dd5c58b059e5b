"""Reward models: loading them, the scores that they give, and the grading process that holds them."""
