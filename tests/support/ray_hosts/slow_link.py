"""A relay between two bridges that delays and loses packets: many kernels have no netem.

As a program, `slow_link.py NAME NAME MILLISECONDS LOSS_PERCENT`, it creates two TAP interfaces and relays
between them.
"""

from __future__ import annotations

import collections
import fcntl
import os
import random
import select
import signal
import struct
import subprocess
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.support.ray_hosts.namespace import Namespace

TUNSETIFF = 0x400454CA
TAP_WITHOUT_HEADER = 0x0002 | 0x1000  # IFF_TAP | IFF_NO_PI
MAX_FRAME_BYTES = 65536


class SlowLink:
    """A bridge of its own for one port, relayed to the common bridge."""

    def __init__(
        self, switch: Namespace, port: str, common: str, milliseconds: float, loss_percent: float
    ) -> None:
        from grpo_engine.process.parent_death import dies_with_this_process

        self.bridge = f"slow-{port}"
        self._switch = switch
        near, far = f"near-{port}", f"far-{port}"
        switch.ip("link", "add", self.bridge, "type", "bridge")
        switch.ip("link", "set", self.bridge, "up")
        options = [near, far, str(milliseconds), str(loss_percent)]
        with switch.entered():
            self._relay = subprocess.Popen(
                [sys.executable, "-I", "-S", __file__, *options],
                stdout=subprocess.PIPE,
                preexec_fn=dies_with_this_process(signal.SIGKILL),
            )
        assert self._relay.stdout is not None
        assert self._relay.stdout.readline(), "the relay cannot create its interfaces"
        switch.ip("link", "set", near, "master", self.bridge, "up")
        switch.ip("link", "set", far, "master", common, "up")

    def close(self) -> None:
        """End the relay; its interfaces disappear with it."""
        self._relay.kill()
        self._relay.communicate()
        self._switch.ip("link", "delete", self.bridge)


def open_tap(name: str) -> int:
    file = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(file, TUNSETIFF, struct.pack("16sH22x", name.encode(), TAP_WITHOUT_HEADER))
    return file


def relay(one: int, other: int, delay_seconds: float, loss: float) -> None:
    """Pass frames on after the delay, in order. Never returns."""
    peers = {one: other, other: one}
    waiting: collections.deque[tuple[float, int, bytes]] = collections.deque()
    chance = random.Random(0)
    while True:
        pause = max(waiting[0][0] - time.monotonic(), 0) if waiting else None
        for tap in select.select(list(peers), [], [], pause)[0]:
            frame = os.read(tap, MAX_FRAME_BYTES)
            if chance.random() >= loss:
                waiting.append((time.monotonic() + delay_seconds, peers[tap], frame))
        while waiting and waiting[0][0] <= time.monotonic():
            _due, tap, frame = waiting.popleft()
            send(tap, frame)


def send(tap: int, frame: bytes) -> None:
    try:
        os.write(tap, frame)
    except OSError:  # the interface is not up yet, or its queue is full: the frame is lost
        return


def main() -> None:
    one, other = open_tap(sys.argv[1]), open_tap(sys.argv[2])
    print("ready", flush=True)
    relay(one, other, float(sys.argv[3]) / 1000, float(sys.argv[4]) / 100)


if __name__ == "__main__":
    main()
