"""The data that crosses the engine's interface: events, records, errors and manifests as plain data.

Belongs here: what a worker reads from a run directory.
Belongs elsewhere: anything that computes, opens a file or loads torch.
"""
