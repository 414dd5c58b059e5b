"""A model that is talked to over HTTP, in a process of its own that a worker starts.

Belongs here: OpenAI's requests and answers, the HTTP application, text streaming, answering.
Belongs elsewhere: users, models' names and limits (`service/serving/`).
"""
