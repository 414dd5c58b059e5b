"""Samplers: prompts and a policy in, groups of completions with their log-probabilities out."""
