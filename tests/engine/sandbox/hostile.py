"""Programs that try to be scored without being right, to see what they must not, or to harm the machine.

`SUBMISSIONS`: completions for `code_tests` whose task is `add(a, b)`. `GRADERS`: bodies of
`grade(sample, item)` that must end as an error of their own call.
"""

from tests.engine.sandbox.hostile_programs import PROGRAMS

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
}
SUBMISSIONS |= PROGRAMS
