"""The results of a job: weights, manifests, model cards, exports, and checks of their integrity.

Belongs here: finding and describing results. Belongs elsewhere: sending them over HTTP (`web/downloads.py`).
"""
