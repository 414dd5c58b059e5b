"""Completions of prompts: with torch on any device, with vLLM on a GPU.

Belongs here: decoding, caches and draws.
Belongs elsewhere: tools and turns (`../tools/`), rewards (`../scoring.py`).
"""
