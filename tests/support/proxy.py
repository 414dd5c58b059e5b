"""A TCP proxy before PostgreSQL or Redis that can refuse, stall, cut and delay connections.

One thread per direction of a connection. The test changes the behaviour while it runs.
"""

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Self

from tests.ports import free_port

PIECE_BYTES = 65_536


class Proxy:
    """Forwards a free port of 127.0.0.1 to `target_port`. Use as a context manager."""

    def __init__(self, target_port: int) -> None:
        self.port = free_port()
        self.delay_seconds = 0.0
        """Seconds of delay for each piece, in both directions."""
        self.num_cut = 0
        """Number of connections that `cut_after` has cut."""
        self._target_port = target_port
        self._flowing = threading.Event()
        self._flowing.set()
        self._patterns: list[bytes] = []
        self._listener: socket.socket | None = None
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        self.accept()
        return self

    def __exit__(self, *_error: object) -> None:
        self.refuse()
        self.flow()

    def accept(self) -> None:
        """Accept new connections (again)."""
        self._listener = socket.create_server(("127.0.0.1", self.port), reuse_port=False)
        threading.Thread(target=self._serve, args=(self._listener,), daemon=True).start()

    def refuse(self) -> None:
        """Refuse new connections and close open ones."""
        if self._listener is not None:
            with suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
        self.cut()

    def cut(self) -> None:
        """Close every open connection."""
        with self._lock:
            open_, self._open = self._open, set()
        for each in open_:
            _close(each)

    def stall(self) -> None:
        """Accept connections, but forward nothing."""
        self._flowing.clear()

    def flow(self) -> None:
        """End `stall`."""
        self._flowing.set()

    def cut_after(self, *patterns: bytes) -> None:
        """Once, after the patterns were sent in this order, cut the connection before the response."""
        self._patterns = list(patterns)

    def _serve(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:  # `refuse`
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._target_port), timeout=5)
            except OSError:
                _close(client)
                continue
            server.settimeout(None)
            with self._lock:
                self._open |= {client, server}
            self._pass_on(client, server, self._watcher())
            self._pass_on(server, client, lambda piece: False)

    def _pass_on(self, source: socket.socket, target: socket.socket, watch: Callable[[bytes], bool]) -> None:
        def run() -> None:
            with suppress(OSError):
                while piece := source.recv(PIECE_BYTES):
                    self._flowing.wait()
                    time.sleep(self.delay_seconds)
                    is_last = watch(piece)
                    if is_last:  # stop reading before the server can respond
                        _close(source)
                    target.sendall(piece)
                    if is_last:
                        return
            _close(source)
            _close(target)

        threading.Thread(target=run, daemon=True).start()

    def _watcher(self) -> Callable[[bytes], bool]:
        """A function for one connection: whether a piece completes the patterns of `cut_after`."""
        num_seen = 0

        def completes(piece: bytes) -> bool:
            nonlocal num_seen
            with self._lock:
                while num_seen < len(self._patterns) and self._patterns[num_seen] in piece:
                    num_seen += 1
                if num_seen == 0 or num_seen < len(self._patterns):
                    return False
                self._patterns, num_seen = [], 0
                self.num_cut += 1
                return True

        return completes


def _close(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
