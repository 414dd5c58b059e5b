"""Stored completions of a job: filters, exports, rescoring with another grader."""
