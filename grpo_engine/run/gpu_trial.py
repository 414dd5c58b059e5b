"""`python -m grpo_engine.run.gpu_trial`: tries every visible GPU. A broken driver may end the process.

Exit status 0 and a line for each GPU, or a traceback whose last line is the reason.
"""

import torch

from grpo_engine.config.job import Runtime
from grpo_engine.contract.errors import MachineError
from grpo_engine.run.devices import choose_device

SIZE = 1024
MEMORY_BYTES = 256 * 2**20
PATTERN = 0x5A5A5A5A5A5A5A5A


def main() -> None:
    choose_device(Runtime(device="cuda"))  # type: ignore[call-arg]
    for number in range(torch.cuda.device_count()):
        print(f"{torch.cuda.get_device_name(number)}: {try_device(torch.device('cuda', number))}")


def try_device(device: torch.device) -> str:
    """Compute a product and fill some memory. Raises MachineError if a value is wrong."""
    ones = torch.ones(SIZE, SIZE, device=device)
    product = ones @ ones
    if not bool((product == SIZE).all()):
        raise MachineError(f"a product of ones on {device} is {float(product.min())}, not {SIZE}")
    block = torch.full((MEMORY_BYTES // 8,), PATTERN, device=device)
    if not bool((block == PATTERN).all()):
        raise MachineError(f"memory of {device} does not keep what was written")
    return "computes"


if __name__ == "__main__":
    main()
