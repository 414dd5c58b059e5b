"""A model and its log-probabilities: loading, LoRA, forward passes, our own kernels (`fast/`).

Belongs here: everything that touches a model's weights.
Belongs elsewhere: sampling (`rollout/`) and optimisation (`training/`).
"""
