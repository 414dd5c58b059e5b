"""One-time setup of an operating-system process: environment, allocator, devices, parent death, fault points.

Does not belong here: jobs, models or torch.
"""
