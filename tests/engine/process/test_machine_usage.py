"""`system/…` metrics: processor time and memory of the engine's processes, and its speed."""

import subprocess
import sys
import time

import torch

from grpo_engine.training.machine_usage import MachineUsage

BUSY = """
import time
data = bytearray(300_000_000)
while time.process_time() < 0.5: pass
print("ready", flush=True)
while True: pass
"""


def test_a_child_counts_with_its_processor_time_and_memory() -> None:
    usage = MachineUsage(torch.device("cpu"), num_tokens=100)
    before, started = usage.since_last(100), time.monotonic()
    with subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        during = usage.since_last(160)
        seconds = time.monotonic() - started
        child.kill()
    assert before["system/tokens_per_second"] == 0
    assert during["system/tokens_per_second"] > 0
    assert during["system/cpu_percent"] / 100 * seconds > 0.45
    assert 0.25 < during["system/memory_gb"] - before["system/memory_gb"] < 0.6
    assert sorted(during) == ["system/cpu_percent", "system/memory_gb", "system/tokens_per_second"]


def test_a_child_that_has_ended_still_counts() -> None:
    usage = MachineUsage(None, num_tokens=0)
    burn = "import time\nwhile time.process_time() < 0.5: pass"
    started = time.monotonic()
    subprocess.run([sys.executable, "-c", burn], check=True)
    cpu_seconds = usage.since_last(0)["system/cpu_percent"] / 100 * (time.monotonic() - started)
    assert cpu_seconds > 0.45
