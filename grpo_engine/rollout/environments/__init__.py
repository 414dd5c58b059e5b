"""Environments in which a model acts: its turns become actions, their observations become its next input.

Belongs here: actions, episodes, sampling around them.
Belongs elsewhere: the protocol (`outbound/openenv.py`), the options of environments in a job (`config/`).
"""
