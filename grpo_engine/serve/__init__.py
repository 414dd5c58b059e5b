"""A model that answers requests over HTTP, in a separate process that a worker starts.

Belongs here: text streaming, answering, the process.
Belongs elsewhere: OpenAI's requests and answers over HTTP (`chat/`); users, models' names and limits
(`service/serving/`).
"""
