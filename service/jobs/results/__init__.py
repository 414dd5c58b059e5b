"""What is left when a job has ended: weights, manifests, model cards, exports, integrity.

Belongs here: finding and describing results. Does not: sending them over HTTP (`web/downloads.py`).
"""
