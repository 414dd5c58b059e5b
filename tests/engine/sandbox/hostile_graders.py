"""Hostile sources of `python` graders: what each tries is its name; none may score, harm or outlive it."""

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
