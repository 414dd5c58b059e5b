"""Black-box agents: programs that request completions from the policy over HTTP while they work on a task.

Belongs here: the server for these requests, their conversations as rows of tokens, sampling around them.
Belongs elsewhere: OpenAI's forms (`chat/`), environments that answer actions (`rollout/environments/`).
"""
