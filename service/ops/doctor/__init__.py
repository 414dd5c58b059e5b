"""`grpo doctor`: examines a machine and a deployment and says what to do.

Belongs here: one check for each thing that can be wrong. Does not: repairs.
"""
