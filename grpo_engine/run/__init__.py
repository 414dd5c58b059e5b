"""A configuration becomes a running job: what is built, in which process, on which ranks.

Belongs here: assembly and process start.
Belongs elsewhere: the steps themselves (`training/`).
"""
