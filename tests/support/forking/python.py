"""A Python of tests: has the server in this folder fork the module or run the code that its arguments name.

It represents the process: forwards signals, ends with it, and ends it when killed itself. Copied
beside the server's socket and started without `site`, in milliseconds: standard library only.
"""

import json
import os
import signal
import socket
import sys
from types import FrameType

FOLDER = os.path.dirname(os.path.abspath(__file__))
SOCKET = os.path.join(FOLDER, "socket")
WHAT = "-c" if FOLDER.endswith("-tests") else "-m"
"""The option of Python that the server forks for; real ones run the others."""


def umask() -> int:
    """The umask of this process, which can only be read by setting it."""
    os.umask(mask := os.umask(0o077))
    return mask


def main() -> int:
    if WHAT not in sys.argv:
        os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.connect(SOCKET)
        files = set(map(int, os.listdir("/proc/self/fd"))) - {server.fileno()}
        descriptors = [number for number in files if os.path.exists(f"/proc/self/fd/{number}")]
        request = {
            "arguments": sys.argv[sys.argv.index(WHAT) + 1 :],
            "environment": dict(os.environ),
            "folder": os.getcwd(),
            "umask": umask(),
            "program": os.path.abspath(__file__),
            "descriptors": descriptors,
            "own_session": True,
            "ends_alone": False,
        }
        socket.send_fds(server, [json.dumps(request).encode()], descriptors)
        pid = int(server.recv(32))

        def pass_on(number: int, frame: FrameType | None) -> None:
            os.kill(pid, number)

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, pass_on)
        code = int(server.recv(32))
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code != signal.SIGKILL else None
        os.kill(os.getpid(), -code)
    return code


if __name__ == "__main__":
    sys.exit(main())
