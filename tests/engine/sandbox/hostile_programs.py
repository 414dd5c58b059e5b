"""Further hostile submissions; see `hostile.py`, which puts them together."""

PROGRAMS: dict[str, str] = {
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
