"""Models of the Hugging Face hub: found, checked and downloaded to `$GRPO_HOME/hub` at a pinned revision.

All requests to the hub are made by a child process, `python -m service.hub`, which may be killed at any time
and then continues where it stopped. Boundary: safetensors only, never code; the catalogue lists the models.
"""
