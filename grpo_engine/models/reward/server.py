"""`python -m grpo_engine.models.reward.server`: a grading process that may hold reward models."""

from grpo_engine.graders.pool import server
from grpo_engine.graders.rules import reward_model


def provide_models() -> None:
    """Let graders use reward models. Raises ImportError if torch is not installed."""
    from grpo_engine.models.reward import models

    reward_model.models = models


if __name__ == "__main__":
    server.main(provide_models)
