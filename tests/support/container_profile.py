"""Runs commands under limits of a container, without a container engine.

It enforces docker/seccomp.json, which libseccomp compiles, and takes root's privilege to read every file.

`python -m tests.support.container_profile CALL COMMAND…` applies the profile without that system call
(`nothing`: the whole profile) and executes the command.
"""

import ctypes
import errno
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

PROFILE = Path(__file__).parents[2] / "docker" / "seccomp.json"
_LIMITED_ROOT = ("setpriv", "--bounding-set", "-dac_override,-dac_read_search")
_CAPABILITY_VERSION = 0x20080522
_OVERRIDES = 0b110
"""CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH."""
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_COMPARE = {"SCMP_CMP_LT": 2, "SCMP_CMP_EQ": 4, "SCMP_CMP_GT": 6}


class _Argument(ctypes.Structure):
    _fields_ = [
        ("index", ctypes.c_uint),
        ("op", ctypes.c_int),
        ("value", ctypes.c_uint64),
        ("value_two", ctypes.c_uint64),
    ]


def read() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(PROFILE.read_text())
    return loaded


def run_without_overrides(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A finished Python process to which the modes of files apply, even if the tests run as root."""
    prefix = _LIMITED_ROOT if os.geteuid() == 0 else ()
    return subprocess.run([*prefix, sys.executable, *arguments], capture_output=True, text=True, check=False)


def give_up_overrides() -> None:
    """From now on, the modes of files apply to this process, even if it is root's."""
    library = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted and inheritable, twice
    _check(-ctypes.get_errno() if library.capget(header, sets) else 0)
    for number in range(3):
        sets[number] &= ~_OVERRIDES
    _check(-ctypes.get_errno() if library.capset(header, sets) else 0)


def enforce(profile: dict[str, Any], without: str) -> None:
    """Apply the profile to this process and its future children. Raises OSError."""
    library = ctypes.CDLL("libseccomp.so.2", use_errno=True)
    library.seccomp_init.restype = ctypes.c_void_p
    context = ctypes.c_void_p(library.seccomp_init(ctypes.c_uint32(_ERRNO | errno.EPERM)))
    for rule in profile["syscalls"]:
        action = _ALLOW if rule["action"] == "SCMP_ACT_ALLOW" else _ERRNO | rule["errnoRet"]
        given = [
            _Argument(each["index"], _COMPARE[each["op"]], each["value"], 0) for each in rule.get("args", [])
        ]
        for name in rule["names"]:
            number = library.seccomp_syscall_resolve_name(name.encode())
            if number < 0 or name == without:
                continue  # also a call of another architecture, or one that is newer than the library
            _check(
                library.seccomp_rule_add_array(
                    context, ctypes.c_uint32(action), number, len(given), (_Argument * len(given))(*given)
                )
            )
    _check(library.seccomp_load(context))  # sets no_new_privs as well
    library.seccomp_release(context)


def _check(code: int) -> None:
    if code != 0:
        raise OSError(-code, os.strerror(-code), platform.machine())


if __name__ == "__main__":
    enforce(read(), without=sys.argv[1])
    os.execvp(sys.argv[2], sys.argv[2:])
