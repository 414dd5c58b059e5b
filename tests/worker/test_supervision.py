"""The flag that stops a worker and its helpers: a signal or another process may set it at any moment."""

import os
import subprocess
import sys
from threading import Thread

from worker.supervision import StopFlag

SIGNALS = """
import signal, sys
from worker.supervision import stop_flag

for _ in range(2000):
    stopping = stop_flag()
    signal.signal(signal.SIGALRM, signal.getsignal(signal.SIGTERM))
    signal.setitimer(signal.ITIMER_REAL, 1e-4)
    while not stopping.wait(0):
        pass
"""


def test_a_signal_sets_it_while_its_own_thread_waits() -> None:
    """If the flag contained a lock, this program would deadlock within its first hundred signals."""
    done = subprocess.run([sys.executable, "-c", SIGNALS], timeout=60, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_it_ends_every_wait_and_stays_set() -> None:
    flag, found = StopFlag(), list[bool]()
    waiting = [Thread(target=lambda: found.append(flag.wait())) for _ in range(2)]
    for thread in waiting:
        thread.start()
    assert not flag.wait(0.01)
    flag.set()
    flag.set()
    for thread in waiting:
        thread.join()
    assert found == [True, True]
    assert flag.is_set()


def test_a_forked_child_sets_it() -> None:
    flag = StopFlag()
    child = os.fork()
    if child == 0:
        flag.set()
        os._exit(0)
    assert flag.wait(60)
    assert os.waitpid(child, 0) == (child, 0)


def test_it_leaves_no_open_files() -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(100):
        StopFlag().set()
    assert len(os.listdir("/proc/self/fd")) < before + 50, "other threads may open some"
