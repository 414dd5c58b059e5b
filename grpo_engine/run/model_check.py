"""`python -m grpo_engine.run.model_check --path PATH`: prints as JSON how a job would compute this model.

Loads the model with a fresh adapter, as a job with default settings does, and trains nothing. Exit status 1
with the reason on standard error if it cannot be loaded. `grpo doctor --model` runs it.
"""

import argparse
import json
import sys
from typing import Any

from grpo_engine.config.job import ModelSource, Runtime, SupervisedHyperparameters
from grpo_engine.contract.errors import EngineError
from grpo_engine.process.setup import set_library_defaults

set_library_defaults()


def check(source: ModelSource, runtime: Runtime) -> dict[str, Any]:
    """`device`, `dtype`, `computation` as in `Started`, and the messages of its `warnings`."""
    from grpo_engine.models.loading import load_policy
    from grpo_engine.rollout.sampler.torch_sampler import TorchSampler
    from grpo_engine.run.build import prepare_device
    from grpo_engine.training.run_description import computation, model_warnings

    device, dtype = prepare_device(runtime)
    policy = load_policy(source, SupervisedHyperparameters.model_validate({}), device, dtype, seed=0)
    TorchSampler(policy, runtime.sample_budget)
    return {
        "device": str(device),
        "dtype": str(dtype).removeprefix("torch."),
        "computation": computation(policy).model_dump(),
        "warnings": [warning.message for warning in model_warnings(policy)],
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m grpo_engine.run.model_check", description=__doc__)
    parser.add_argument("--path", required=True, help="folder or hub id of the model")
    parser.add_argument("--revision", help="commit of the hub repository")
    parser.add_argument("--runtime", default="{}", help="JSON with the fields of GRPO_RUNTIME")
    options = parser.parse_args()
    source = ModelSource(name=options.path, path=options.path, revision=options.revision)
    try:
        found = check(source, Runtime.model_validate_json(options.runtime))
    except EngineError as error:
        print(error.message, file=sys.stderr)
        return 1
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
