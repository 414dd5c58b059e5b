"""`python -m grpo_engine.serve.serving --reports-to FD`: one model that answers requests over HTTP.

Boundary: weights and sampler are those of training; the worker decides who may use the model.
"""

import sys

from grpo_engine.process.setup import set_library_defaults
from grpo_engine.serve.process import serve

set_library_defaults()

from grpo_engine.serve.answering import Answering  # noqa: E402 - torch reads the defaults when it is imported

if __name__ == "__main__":
    sys.exit(serve(Answering.load))
