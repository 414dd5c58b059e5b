"""The `grpo` commands of an operator, which use the deployment's settings, database and storage directly."""
