"""Completions of prompts: with torch on any device, with vLLM on a GPU.

Belongs here: decoding, caches and draws. Does not: tools and turns (`../tools/`), rewards (`../scoring.py`).
"""
