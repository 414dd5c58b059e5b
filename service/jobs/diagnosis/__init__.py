"""Why a job failed or learns poorly: facts, rules and findings.

Belongs here: rules over recorded facts. Belongs elsewhere: new measurements.
"""
