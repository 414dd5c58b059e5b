"""More programs that try to be scored without being right, or to disturb the grading of others.

`CALLS`: completions whose task is `add(a, b)`, each with what `add(1, 2)` should give. `PROGRAMS`:
completions that should print the text next to them. `FORGED`: forged answers of a `python` grader.
"""

from typing import Any

FORGE = """
import os
def forge(body):
    for seal_end in range(3, 64):
        try:
            os.set_blocking(seal_end, False)
            seal = os.read(seal_end, 16)
        except OSError: continue
        for end in range(3, 64):
            try:
                os.set_blocking(end, True)
                view = memoryview(len(body).to_bytes(4, 'big') + seal + body)
                while view: view = view[os.write(end, view):]
            except OSError: pass
    os._exit(0)
"""
"""A child can read its seal and forge an answer, which is still only data."""

CALLS: dict[str, tuple[str, Any]] = {
    "an exception object": ("class E(Exception):\n    pass\ndef add(a, b): return E(3)", 3),
    "__reduce__": ("class R:\n    def __reduce__(self): return int, ('3',)\ndef add(a, b): return R()", 3),
    "a metaclass that claims all": (
        "class M(type):\n    __mro__ = (int,)\n    def __subclasscheck__(c, i): return True\n"
        "    __instancecheck__ = __subclasscheck__\nclass X(metaclass=M): pass\ndef add(a, b): return X()",
        3,
    ),
    "a generator": ("def add(a, b):\n    yield 3", 3),
    "an iterator without end": (
        "import itertools\nclass L(list):\n    def __iter__(self): return itertools.count()\n"
        "def add(a, b): return L()",
        3,
    ),
    "a value that shares itself": (
        "def add(a, b):\n    x = [3]\n    for _ in range(60): x = [x, x]\n    return x",
        3,
    ),
    "NaN for null": ("def add(a, b): return float('nan')", None),
    "False for 0": ("def add(a, b): return False", 0),
    "a text that looks like JSON": ("def add(a, b): return '[1, 2]'", [1, 2]),
    "bytes": ("def add(a, b): return b'3'", "3"),
    "keys that collide": ("def add(a, b): return {1: 'no', '1': 'yes'}", {"1": "yes"}),
    "the request edited": (
        "import sys\nframe = sys._getframe(1)\nwhile frame:\n    asked = frame.f_locals.get('request')\n"
        "    if isinstance(asked, dict): asked.update(call='abs', args=[3])\n    frame = frame.f_back\n"
        "def add(a, b): return 4",
        3,
    ),
    "an answer of 500,000 brackets": (FORGE + "def add(a, b): forge(b'v' + b'[' * 500_000)", 3),
    "an answer of a million digits": (FORGE + "def add(a, b): forge(b'v' + b'9' * 1_000_000)", 3),
    "an error of a million characters": (FORGE + "def add(a, b): forge(b'e' + b'x' * 1_000_000)", 3),
    "faulthandler": (
        "import faulthandler, sys\n"
        "faulthandler.dump_traceback_later(0.05, exit=True, file=sys.__stdout__)\nwhile True: pass",
        3,
    ),
    "an alarm that exits": (
        "import signal, sys\nsignal.signal(signal.SIGALRM, lambda *_: sys.exit(0))\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)\ndef add(a, b):\n    while True: pass",
        3,
    ),
    "every signal to the server": (
        "import os\ndef add(a, b):\n    for n in range(34, 65): os.kill(os.getppid(), n)\n    return 4",
        3,
    ),
    "stopping everybody": ("import os\ndef add(a, b):\n    os.kill(-1, 19)\n    return 4", 3),
    "copies that share memory": (
        "import mmap, os\ndef add(a, b):\n    memory = mmap.mmap(-1, 4096)\n    for _ in range(8):\n"
        "        if os.fork() == 0:\n            while True: memory[:4] = b'3333'\n    return a + b",
        3,
    ),
    "another program in its place": (
        "import os, sys\ndef add(a, b): os.execv(sys.executable, [sys.executable, '-c', 'print(3)'])",
        3,
    ),
    "shared memory, rings and others' descriptors": (
        "import ctypes\ndef add(a, b):\n    c = ctypes.CDLL(None)\n"
        "    got = [c.shmget(0, 4096, 0o1666), c.semget(0, 1, 0o1666), c.msgget(0, 0o1666)]\n"
        "    for call in ((319, b'x', 0), (425, 8, 0), (435, 0, 0), (438, 3, 1, 0), (447, 0)):\n"
        "        got.append(c.syscall(*call))\n"
        "    return 3 if any(each != -1 for each in got) else 4",
        3,
    ),
    "full sockets": (
        "import socket\ndef add(a, b):\n    pairs = []\n    while True:\n"
        "        try: pairs.append(socket.socketpair())\n        except OSError: break\n"
        "    for left, _ in pairs:\n        left.setblocking(False)\n        try:\n"
        "            while True: left.send(bytes(65536))\n        except OSError: pass\n    return 4",
        3,
    ),
    "an import hook": (
        "import builtins, sys\nbuiltins.__import__ = lambda *a, **k: sys.exit(0)\ndef add(a, b): return 'no'",
        3,
    ),
    "gc callbacks": (
        "import gc, os\ngc.callbacks.append(lambda *_: os._exit(0))\ngc.set_threshold(1)\n"
        "def add(a, b): return len([[] for _ in range(9)])",
        3,
    ),
    "an audit hook": (
        "import sys\nsys.addaudithook(lambda *_: sys.exit(0))\ndef add(a, b): return open('/x')",
        3,
    ),
    "folders without end": (
        "import os\ndef add(a, b):\n    while True:\n        os.mkdir('d')\n        os.chdir('d')",
        3,
    ),
    "a lock that outlives it": (
        "import fcntl, os, time\ndef add(a, b):\n    fcntl.flock(os.open('/tmp', 0), fcntl.LOCK_EX)\n"
        "    if os.fork() == 0: time.sleep(100)\n    return a + b",
        3,
    ),
}

PROGRAMS: dict[str, tuple[str, str]] = {
    "digits that a slow pattern reads": ("print('1' * 900_000 + 'x')", "3.5"),
    "a fence of spaces": ("```" + " " * 200_000 + "`\nprint(4)", "3"),
    "a fence of letters": ("```" + "a" * 200_000 + "`\nprint(4)", "3"),
    "reading on": ("import sys\nprint(sys.stdin.read() * 2)", "3"),
    "a byte order mark": ("print('\\ufeff3')", "3"),
    "a NUL": ("print('3\\0')", "3"),
    "colours": ("print('\\x1b[31m3\\x1b[0m')", "3"),
    "an overwritten line": ("print('4\\r3')", "3"),
    "other digits": ("print('\\u0663.\\u0660')", "3.0"),
    "other ends of lines": ("print('1\\x1c2\\u20283')", "1\n2\n3"),
    "bytes that are no text": ("import sys\nsys.stdout.buffer.write(b'\\xff3')", "3"),
    "gigabytes": ("import os\nwhile True: os.write(1, b'3\\n' * 30_000)", "3"),
    "gigabytes of errors": ("import os\nfor _ in range(3000): os.write(2, bytes(60_000))\nprint(4)", "3"),
    "an exit at exit": ("import atexit, os\nprint(3, flush=True)\natexit.register(os._exit, 0)", "3"),
    "a thread that says more": (
        "import threading, time\n"
        "threading.Thread(target=lambda: time.sleep(0.05) or print(4)).start()\nprint(3)",
        "3",
    ),
    "death after the answer": ("import os\nprint(3, flush=True)\nos.kill(os.getpid(), 15)", "3"),
}

FORGED: dict[str, str] = {
    "NaN": "b'vNaN'",
    "infinity": "b'vInfinity'",
    "beyond float": "b'v1e999'",
    "true": "b'vtrue'",
    "a text": "b'v\"1\"'",
    "a bool as score": "b'v{\"score\": true}'",
    "two scores": 'b\'v{"score": 0.5, "score": NaN}\'',
    "deep nesting": "b'v' + b'[' * 500_000",
    "4000 digits": "b'v' + b'9' * 4000",
    "more than may be said": "b'v' + b' ' * 2_000_000 + b'1'",
    "a long error": "b'e' + b'x' * 1_000_000",
    "surrogates as error": "b'e' + '\\ud800'.encode('utf-8', 'surrogatepass') * 100",
}
