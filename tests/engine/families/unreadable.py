"""`python -m tests.engine.families.unreadable FOLDER`: loads a model with the rights of a usual user."""

import sys

import torch

from grpo_engine.config.job import ModelSource
from grpo_engine.contract.errors import ModelError
from grpo_engine.models.loading import load_base
from tests.support.container_profile import give_up_overrides

if __name__ == "__main__":
    give_up_overrides()
    try:
        load_base(ModelSource(name="qwen3", path=sys.argv[1]), torch.float32)
    except ModelError as error:
        print(error)
