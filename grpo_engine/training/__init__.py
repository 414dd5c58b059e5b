"""The order of a training step and what surrounds it: gradients, optimiser, memory budget, checkpoints.

Belongs here: what moves weights.
Belongs elsewhere: formulas (`objective/`) and sampling (`rollout/`).
"""
