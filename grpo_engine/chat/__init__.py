"""OpenAI's chat completions, completions and responses over HTTP, for any backend.

Belongs here: request and response forms, the HTTP application.
Belongs elsewhere: a loaded model and its process (`serve/`), the rollouts of agents (`rollout/agents/`).
"""
