"""A job's vocabulary: states, names, request and response schemas, OpenAI's terms, dataset rows.

Belongs here: shapes and pure rules about them.
Belongs elsewhere: queries (`store/`) and decisions (`intake/`).
"""
