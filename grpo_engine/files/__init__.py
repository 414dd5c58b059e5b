"""Files that survive a crash: atomic folders, the event log, safetensors indexes, fingerprints.

Belongs here: formats on disk and how they are written durably.
Belongs elsewhere: what a checkpoint contains (`training/`).
"""
