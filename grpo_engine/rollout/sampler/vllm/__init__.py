"""Completions by vLLM, inside the engine's process.

Belongs here: starting vLLM, handing the policy over, the proof that it arrived.
Belongs elsewhere: the choice of a sampler (`../choice.py`).
"""
