"""GRPO fine-tuning of causal language models, one process per job.

The *door* (`config`, `records`, `events`, `errors`, `graders`) is plain data: pydantic and the standard
library. The service validates jobs with these very classes. Everything else needs torch and runs only in
the engine's own process (`python -m grpo_engine --config job.json --run-dir DIR`).
"""
