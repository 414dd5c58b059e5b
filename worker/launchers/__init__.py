"""How engine processes are started and stopped, warm ones included.

Belongs here: processes. Does not: jobs and their rows (`attempt/`).
"""
