"""The mathematics of GRPO: advantages, losses, packing and metrics as pure functions, and their records.

Belongs here: formulas with their source.
Belongs elsewhere: models, files and the order of a step (`training/`).
"""
