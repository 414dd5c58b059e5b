"""A model that is talked to over HTTP, in a process of its own that a worker starts.

Belongs here: text streaming, answering, the process.
Belongs elsewhere: OpenAI's requests and answers over HTTP (`chat/`); users, models' names and limits
(`service/serving/`).
"""
