"""Black-box agents: programs that ask the policy for completions over HTTP while they work on a task.

Belongs here: the door that they ask, their conversations as rows of tokens, sampling around them.
Belongs elsewhere: OpenAI's forms (`chat/`), environments that answer actions (`rollout/environments/`).
"""
