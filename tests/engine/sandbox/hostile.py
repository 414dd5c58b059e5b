"""Programs that try to be scored without being right, to see what they must not, or to harm the machine.

`SUBMISSIONS`: completions for `code_tests` whose task is `add(a, b)`. `GRADERS`: bodies of
`grade(sample, item)` that must end as an error of their own call.
"""

from __future__ import annotations

SUBMISSIONS: dict[str, str] = {
    "sys.exit(0) at import": "import sys\nsys.exit(0)",
    "os._exit(0) at import": "import os\nos._exit(0)",
    "sys.exit(0) in the function": "import sys\ndef add(a, b):\n    sys.exit(0)",
    "os._exit(0) in the function": "import os\ndef add(a, b):\n    os._exit(0)",
    "raising BaseException": "def add(a, b):\n    raise BaseException('PASS')",
    "raising an exception whose text raises": """
class Bad(Exception):
    def __str__(self): raise SystemExit(0)
    __repr__ = __str__
def add(a, b):
    raise Bad()
""",
    "an object that equals everything": """
class Any:
    def __eq__(self, other): return True
    def __hash__(self): return 3
def add(a, b):
    return Any()
""",
    "an int that equals everything": """
class Any(int):
    def __eq__(self, other): return True
    def __hash__(self): return 3
    def __repr__(self): return '3'
    __str__ = __index__ = __int__ = __repr__
def add(a, b):
    return Any(10**6)
""",
    "a float that equals everything": """
class Any(float):
    def __eq__(self, other): return True
    def __float__(self): return 3.0
    def __repr__(self): return '3.0'
    def __add__(self, other): return 3.0
def add(a, b):
    return Any(1e6)
""",
    "a str that equals everything": """
class Any(str):
    def __eq__(self, other): return True
    def __hash__(self): return 0
    def __str__(self): return '3'
def add(a, b):
    return Any('x')
""",
    "a list that equals everything": """
class Any(list):
    def __eq__(self, other): return True
    def __iter__(self): return iter([3])
def add(a, b):
    return Any([3, 4])
""",
    "a dict that equals everything": """
class Any(dict):
    def __eq__(self, other): return True
    def items(self): return [('x', 3)]
def add(a, b):
    return Any()
""",
    "a class that lies about its type": """
class Liar:
    __class__ = int
    def __index__(self): return 3
def add(a, b):
    return Liar()
""",
    "True for one": "def add(a, b):\n    return True",
    "NaN": "def add(a, b):\n    return float('nan')",
    "1e999": "def add(a, b):\n    return 1e999",
    "a huge int": "def add(a, b):\n    return 10**100000",
    "a huge list": "def add(a, b):\n    return [0] * 10**7",
    "a huge text": "def add(a, b):\n    return 'x' * (3 * 2**20)",
    "a list that holds itself": "def add(a, b):\n    x = []\n    x.append(x)\n    return x",
    "deep nesting": "def add(a, b):\n    x = 3\n    for _ in range(100000): x = [x]\n    return x",
    "unpaired surrogates": "def add(a, b):\n    return '\\ud800' * 10",
    "a printed PASS": "print('PASS')\nprint('OK')\nprint('{\"passed\": true}')\ndef add(a, b):\n    print(3)",
    "atexit": """
import atexit, os
def late():
    for fd in range(64):
        try: os.write(fd, b'3\\n')
        except OSError: pass
atexit.register(late)
def add(a, b):
    raise SystemExit(0)
""",
    "patched unittest": """
import unittest
unittest.TestCase.assertEqual = lambda *a, **k: None
unittest.TestResult.wasSuccessful = lambda self: True
def add(a, b):
    return None
""",
    "patched json": """
import json
json.dumps = lambda *a, **k: 'true'
json.loads = lambda *a, **k: 3
def add(a, b):
    return None
""",
    "patched builtins": """
import builtins
builtins.type = lambda value: int
builtins.isinstance = lambda *a: True
builtins.len = lambda value: 3
builtins.open = builtins.print = None
def add(a, b):
    return object()
""",
    "patched os": """
import os
os.write = lambda fd, data: len(data)
os.read = lambda fd, size: b'3'
def add(a, b):
    return None
""",
    "writing to every descriptor": """
import os
def add(a, b):
    for fd in range(3, 64):
        for text in (b'3', b'v3', b'{"value": 3}\\n', b'\\x00\\x00\\x00\\x013'):
            try: os.write(fd, text)
            except OSError: pass
    os._exit(0)
""",
    "writing a length and an answer by hand": """
import os
def add(a, b):
    for fd in range(3, 64):
        try: os.write(fd, (2).to_bytes(4, 'big') + bytes(16) + b'v3')
        except OSError: pass
    os._exit(0)
""",
    "closing every descriptor": "import os\nos.closerange(0, 64)\ndef add(a, b):\n    return None",
    "forking and answering twice": "import os\ndef add(a, b):\n    os.fork()\n    return a + b",
    "a forked copy that answers later": """
import os, time
def add(a, b):
    if os.fork() == 0:
        time.sleep(0.05)
    return a + b
""",
    "a forked copy that answers alone": """
import os
def add(a, b):
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        os._exit(0)
    return a + b
""",
    "a fork bomb": """
import os
def add(a, b):
    while True:
        try: os.fork()
        except OSError: pass
""",
    "a thread bomb": """
import threading, time
def add(a, b):
    while True:
        try: threading.Thread(target=time.sleep, args=(60,)).start()
        except RuntimeError: pass
""",
    "a memory bomb": "def add(a, b):\n    x = []\n    while True: x.append(bytearray(2**26))",
    "a disk filler": """
def add(a, b):
    for number in range(10**6):
        with open(f'/tmp/{number}', 'wb') as file: file.write(bytes(2**20))
""",
    "a million empty files": """
def add(a, b):
    for number in range(10**6): open(f'/tmp/{number}', 'wb').close()
""",
    "an endless loop": "while True: pass",
    "an endless loop that catches everything": """
def add(a, b):
    while True:
        try:
            while True: pass
        except BaseException: pass
""",
    "a loop without the interpreter": "def add(a, b):\n    return 7 ** (10**8) % 3",
    "a regular expression without end": """
import re
def add(a, b):
    return re.match('(a+)+$', 'a' * 60 + 'b')
""",
    "sleeping": "import time\ndef add(a, b):\n    time.sleep(3600)",
    "reading input that never comes": "import os\ndef add(a, b):\n    return os.read(os.pipe()[0], 1)",
    "endless output": "def add(a, b):\n    while True: print('3' * 10000)",
    "endless errors": "import sys\ndef add(a, b):\n    while True: sys.stderr.write('3' * 10000)",
    "deep recursion": "def add(a, b):\n    return add(a, b)",
    "recursion through the C stack": """
import sys
sys.setrecursionlimit(10**9)
def add(a, b):
    return add(a, b)
""",
    "a crash": "import ctypes\ndef add(a, b):\n    ctypes.string_at(0)",
    "a socket": """
import socket
def add(a, b):
    socket.create_connection(('127.0.0.1', 80), 1)
    return a + b
""",
    "a raw socket": """
import socket
def add(a, b):
    socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)
    return a + b
""",
    "host files": "def add(a, b):\n    open('/etc/passwd').read()\n    return a + b",
    "its own process folder": "def add(a, b):\n    open('/proc/self/mem', 'rb')\n    return a + b",
    "the parent's process folder": """
import os
def add(a, b):
    open(f'/proc/{os.getppid()}/environ')
    return a + b
""",
    "the server's source": "def add(a, b):\n    open('/job.py')\n    return a + b",
    "system calls through ctypes": """
import ctypes
def add(a, b):
    libc = ctypes.CDLL(None, use_errno=True)
    for call in (lambda: libc.unshare(0x10000000), lambda: libc.ptrace(16, 2, 0, 0),
                 lambda: libc.mount(b'none', b'/tmp', b'tmpfs', 0, None), lambda: libc.setuid(0),
                 lambda: libc.syscall(319, b'x', 0), lambda: libc.chroot(b'/tmp')):
        if call() != -1: return a + b
""",
    "ignoring SIGTERM": """
import signal
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM):
    signal.signal(number, signal.SIG_IGN)
while True: pass
""",
    "a daemon": """
import os, time
def add(a, b):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(3600)
        os._exit(0)
    return a + b
""",
    "a thread that writes on": """
import os, threading
def flood():
    while True:
        for fd in range(3, 64):
            try: os.write(fd, b'3')
            except OSError: pass
def add(a, b):
    threading.Thread(target=flood, daemon=True).start()
    while True: pass
""",
    "killing everybody": """
import os, signal
def add(a, b):
    os.kill(-1, signal.SIGKILL)
    return a + b
""",
    "killing the server": """
import os, signal
def add(a, b):
    os.kill(os.getppid(), signal.SIGKILL)
    return a + b
""",
    "stopping the server": """
import os, signal
def add(a, b):
    os.kill(os.getppid(), signal.SIGSTOP)
    return a + b
""",
    "what is expected, in the frames": """
import sys
def add(a, b):
    frame = sys._getframe()
    while frame:
        for name, value in {**frame.f_locals, **frame.f_globals}.items():
            if 'expected' in name or isinstance(value, dict) and 'expected' in value:
                return a + b
        frame = frame.f_back
""",
    "what is expected, in the heap": """
import gc
def add(a, b):
    for thing in gc.get_objects():
        if type(thing) is dict and 'expected' in thing and 'args' in thing:
            return thing['expected']
""",
    "the caller's functions replaced": """
import sys
def add(a, b):
    frame = sys._getframe(1)
    while frame:
        for name in list(frame.f_globals):
            if callable(frame.f_globals[name]) and not name.startswith('__'):
                frame.f_globals[name] = lambda *a, **k: (b'v', 'true')
        frame = frame.f_back
    return None
""",
    "tracing the caller": """
import sys
def trace(frame, event, argument):
    if 'kind' in frame.f_locals: frame.f_locals['kind'] = b'v'
    return trace
sys.settrace(trace)
def add(a, b):
    sys._getframe(1).f_trace = trace
    raise ValueError
""",
    "standard output replaced": """
import io, sys
class Out(io.StringIO):
    def flush(self): raise SystemExit(0)
sys.stdout = sys.__stdout__ = Out()
def add(a, b):
    return 'PASS'
""",
    "__del__": """
import os
class Last:
    def __del__(self): os._exit(0)
def add(a, b):
    Last()
    return a + b
""",
    "an import hook": """
import sys
class Hook:
    def find_spec(self, name, path=None, target=None): raise SystemExit(0)
sys.meta_path.insert(0, Hook())
sys.modules.clear()
def add(a, b):
    import json
    return a + b
""",
    "a module of its own": """
open('/tmp/json.py', 'w').write('dumps = loads = lambda *a, **k: True')
import sys
sys.path.insert(0, '/tmp')
sys.modules.pop('json')
import json
def add(a, b):
    return json.dumps('no')
""",
    "source that does not compile": "def add(a, b) return 3",
    "source that is nested too deeply": "x = " + "(" * 5000 + ")" * 5000,
    "source that is one long sum": "x = " + "+".join(["1"] * 50_000) + "\ndef add(a, b):\n    return None",
    "source with a NUL": "def add(a, b):\n    return a + b\n\0",
    "constants that take long to fold": "x = " + "*".join(["9" * 4000] * 50) + "\nwhile True: pass",
    "limits of the server": """
import resource, os
def add(a, b):
    resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (1, 1))
    return a + b
""",
    "higher limits": """
import resource
def add(a, b):
    resource.setrlimit(resource.RLIMIT_AS, (2**40, 2**40))
    return a + b
""",
}

GRADERS: dict[str, str] = {
    "sys.exit(0)": "import sys; sys.exit(0)",
    "os._exit(0)": "import os; os._exit(0)",
    "raising": "raise ValueError('no')",
    "raising BaseException": "raise BaseException('no')",
    "KeyboardInterrupt": "raise KeyboardInterrupt",
    "NaN": "return float('nan')",
    "infinity": "return float('inf')",
    "1e999": "return 1e999",
    "a bool": "return True",
    "a text": "return '1.0'",
    "None": "return None",
    "a list": "return [1.0]",
    "a huge int": "return 10**5000",
    "an int beyond float": "return 10**400",
    "a complex number": "return 1j",
    "a hostile __float__": "return type('X', (), {'__float__': lambda self: 1.0})()",
    "a subclass of float": "return type('X', (float,), {'__float__': lambda self: 1.0})(1)",
    "a subclass of int": "return type('X', (int,), {})(1)",
    "a dict without a score": "return {'feedback': 'good'}",
    "a dict with a bool": "return {'score': True, 'feedback': 'good'}",
    "a dict with NaN": "return {'score': float('nan')}",
    "a dict with more": "return {'score': 1.0, 'passed': True}",
    "a feedback that is no text": "return {'score': 1.0, 'feedback': 7}",
    "a flood of output": "print('x' * 2**22); return 1.0",
    "closing descriptors": "import os; os.closerange(0, 64); return 1.0",
    "writing the answer by hand": """import os
    for fd in range(3, 64):
        try: os.write(fd, b'1.0')
        except OSError: pass
    return 1.0""",
    "answering twice": "import os; os.fork(); return 1.0",
    "leaving a daemon": """import os, time
    if os.fork() == 0:
        os.setsid(); time.sleep(3600)
    return 1.0""",
    "a memory bomb": "return len(bytearray(2**33))",
    "deep recursion": "return grade(sample, item)",
    "a socket": "import socket; socket.socket(); return 1.0",
    "a host file": "return float(len(open('/etc/passwd').read()))",
    "killing the server": "import os; os.kill(os.getppid(), 9); return 1.0",
    "a crash": "import ctypes; ctypes.string_at(0)",
}
"""Ends at once, each with an error."""

ENDLESS_GRADERS: dict[str, str] = {
    "an endless loop": "while True: pass",
    "an endless loop that catches all": """while True:
        try:
            while True: pass
        except BaseException: pass""",
    "a fork bomb": "import os\n    while True:\n        try: os.fork()\n        except OSError: pass",
    "sleeping": "import time; time.sleep(3600)",
    "stopping the server": "import os; os.kill(os.getppid(), 19); return 1.0",
}
"""Runs until its deadline."""
