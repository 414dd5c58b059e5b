"""Graders without a job: `/v1/fine_tuning/alpha/graders`."""
