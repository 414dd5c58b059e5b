"""What a process sets up for itself: environment, memory allocator, devices, parent death, fault points.

Belongs here: one-time setup of an operating-system process. Does not: jobs, models or torch.
"""
