"""The `grpo` commands before a job: import a configuration, try a grader, probe the prompts."""
