"""Why a job failed or learns poorly: facts, rules and findings.

Belongs here: rules over recorded facts. Does not: new measurements.
"""
