"""From prompts to scored groups: datasets, samplers, tools, scoring and evaluation.

Belongs here: what happens before a gradient.
Belongs elsewhere: advantages and losses (`objective/`), weight updates (`training/`).
"""
