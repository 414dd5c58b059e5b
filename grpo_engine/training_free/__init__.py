"""Lessons instead of weights: a library of experiences that grows in the prompt (arXiv 2510.08191).

Belongs here: the loop that edits the library.
Belongs elsewhere: code that training uses too (events, scoring, evaluation).
"""
