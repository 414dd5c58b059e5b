"""Probes: samples of a model on a job's prompts before any training, and a verdict."""
