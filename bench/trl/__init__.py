"""Compares this engine with TRL 1.16: the same models, prompts and seeds. Does not measure the service."""
