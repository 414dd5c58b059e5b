"""GRPO fine-tuning of causal language models, one process per job.

`contract`, `config` and `graders` are plain data: pydantic and the standard library. The service validates
jobs with these classes. Everything else needs torch and runs only in the engine's own process
(`python -m grpo_engine --config job.json --run-dir DIR`).
"""
