"""Why there is no merged model, with the codes that the API answers.

NotMergeable
├── BaseUnusable   the base model's files are not there, or not those of a model
└── BaseChanged    they are not those that the adapter was trained on, or are being replaced
"""

from __future__ import annotations


class NotMergeable(Exception):
    """This adapter cannot be merged into this base; the message says why."""

    code = "not_mergeable"


class BaseUnusable(NotMergeable):
    code = "base_model_unusable"


class BaseChanged(NotMergeable):
    code = "base_model_changed"
