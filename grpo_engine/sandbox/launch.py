"""How a process is started in the sandbox: an unprivileged uid first, then bubblewrap.

As root, bubblewrap would map its user onto the host's root, so the uid is dropped before it starts; an
interpreter that this uid cannot reach (below /root, say) is first bound to a place that it can, in a mount
namespace of its own. Inside there is no network, no /proc, no /etc, no writable file system but a small
/tmp, no program but the interpreter, and no process of others.
Boundary: argument lists only, nothing is started here. Linux.
"""

from __future__ import annotations

import os
import shutil
import stat
import sys
import sysconfig
from pathlib import Path
from typing import NamedTuple

UNPRIVILEGED_UID = 65534
TMP_BYTES = 64 * 2**20
_STAGE = "/mnt"
"""Where a hidden interpreter is bound, in a mount namespace that only this start sees."""
_LIBRARIES = ("/usr/lib", "/usr/lib64", "/lib", "/lib64", "/usr/share/zoneinfo")
_MAX_USER_NAMESPACES = "/proc/sys/user/max_user_namespaces"
_FIRST_VICTIM = "echo 1000 >/proc/self/oom_score_adj"
"""Where the machine runs out of memory, the kernel ends a sandbox before anything else."""


class SandboxUnavailable(Exception):
    """Untrusted code cannot run on this machine; says why."""


class Interpreter(NamedTuple):
    """A Python outside that is shown inside, read-only, under its own path."""

    executable: str
    prefix: str
    version: str
    """`3.11`."""
    contained: bool = True
    """False: it runs without a sandbox, see `unsafe.py`."""

    @property
    def hidden(self) -> bool:
        """Whether the unprivileged uid cannot reach it."""
        return not _reachable(Path(self.executable))


def interpreters() -> list[Interpreter]:
    """This process's own Python (of a virtual environment: its base), then the system's."""
    own = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
    found = [Interpreter(own, sys.base_prefix, sysconfig.get_python_version())]
    system = os.path.realpath("/usr/bin/python3")
    version = system.removeprefix("/usr/bin/python")
    if os.path.exists(system) and system != own and os.path.isdir(f"/usr/lib/python{version}"):
        found.append(Interpreter(system, "/usr", version))
    return found


def command(interpreter: Interpreter, *arguments: str, seccomp_fd: int, info_fd: int) -> list[str]:
    """Argument list that runs the interpreter with `arguments` in a fresh sandbox.

    Both descriptors must be passed on to the process. Raises SandboxUnavailable where a program is missing.
    """
    bubblewrap = [program("bwrap"), "--seccomp", str(seccomp_fd), "--info-fd", str(info_fd)]
    inside = [
        *bubblewrap,
        *_ISOLATION,
        *_no_more_users(),
        *_view(interpreter),
        "--",
        interpreter.executable,
        *FLAGS,
        *arguments,
    ]
    shell = program("sh")
    if os.geteuid() != 0:
        return [shell, "-c", f'{_FIRST_VICTIM}; exec "$@"', "sh", *inside]
    unprivileged = [*setpriv(), *inside]
    if not interpreter.hidden:
        return [shell, "-c", f'{_FIRST_VICTIM}; exec "$@"', "sh", *unprivileged]
    script = f'{_FIRST_VICTIM}; mount --bind "$1" {_STAGE} || exit 1; shift; exec "$@"'
    return [
        program("unshare"),
        "--mount",
        "--",
        shell,
        "-c",
        script,
        "sh",
        interpreter.prefix,
        *unprivileged,
    ]


def setpriv(*options: str, keep: str = "") -> list[str]:
    """Beginning of a command without privileges: as root nobody's uid, no groups, no capability but one."""
    drop: list[str] = []
    if os.geteuid() == 0:
        kept = f"-all,+{keep}" if keep else "-all"
        drop = [f"--inh-caps={kept}", f"--ambient-caps={kept}", f"--bounding-set={kept}"]
        drop += [f"--reuid={UNPRIVILEGED_UID}", f"--regid={UNPRIVILEGED_UID}", "--clear-groups"]
    return [program("setpriv"), *drop, *options, "--"]


def nobody_who_reads(*paths: str) -> list[str]:
    """Beginning of a command for libraries that parse what models write: as root it becomes nobody.

    Nobody who may still read everything, where one of these is hidden from everybody else.
    """
    if os.geteuid() != 0:
        return []
    is_hidden = not all(_reachable(Path(path).resolve()) for path in paths)
    return setpriv(keep="dac_read_search" if is_hidden else "")


_ISOLATION = [
    *("--unshare-all", "--unshare-user", "--cap-drop", "ALL"),
    *("--die-with-parent", "--new-session", "--clearenv", "--hostname", "sandbox"),
    *("--setenv", "HOME", "/tmp", "--setenv", "LANG", "C.UTF-8"),  # noqa: S108 - the sandbox's own
    *("--setenv", "PYTHONHASHSEED", "0"),  # sets iterate alike in every run
]
FLAGS = ["-s", "-S", "-P", "-B", "-W", "ignore"]


def _no_more_users() -> list[str]:
    """No user namespace within the sandbox's own. The filter refuses it too.

    bubblewrap sets a sysctl for it. In a container /proc/sys is read-only: there the filter alone must do.
    """
    try:
        is_read_only = os.statvfs(_MAX_USER_NAMESPACES).f_flag & os.ST_RDONLY
    except OSError as error:
        raise SandboxUnavailable(f"this kernel has no user namespaces: {error}") from None
    return [] if is_read_only else ["--disable-userns"]


def _view(interpreter: Interpreter) -> list[str]:
    """The file system inside: libraries and interpreter read-only, /dev, a sized /tmp, nothing else."""
    arguments: list[str] = []
    for folder in _LIBRARIES:
        if os.path.islink(folder):
            arguments += ["--symlink", os.readlink(folder), folder]
        elif os.path.isdir(folder):
            arguments += ["--ro-bind", folder, folder]
    outside = _STAGE if interpreter.hidden and os.geteuid() == 0 else interpreter.prefix
    library = f"{interpreter.prefix}/lib"
    if library not in _LIBRARIES:
        arguments += ["--ro-bind", f"{outside}/lib", library]
    executable = interpreter.executable
    if executable.startswith(f"{interpreter.prefix}/"):
        executable = outside + executable.removeprefix(interpreter.prefix)
    arguments += ["--ro-bind", executable, interpreter.executable]
    arguments += ["--setenv", "LD_LIBRARY_PATH", library]
    packages = f"{library}/python{interpreter.version}/site-packages"
    if os.path.isdir(packages):  # what is installed beside us is nobody's business
        arguments += ["--tmpfs", packages, "--remount-ro", packages]
    arguments += ["--dev", "/dev", "--remount-ro", "/dev"]
    arguments += ["--size", str(TMP_BYTES), "--tmpfs", "/tmp", "--chdir", "/tmp"]  # noqa: S108
    return [*arguments, "--remount-ro", "/"]


def program(name: str) -> str:
    found = shutil.which(name, path="/usr/bin:/bin:/usr/sbin:/sbin:/usr/local/bin")
    if found is None:
        raise SandboxUnavailable(f"{name} is not installed")
    return found


def _reachable(path: Path) -> bool:
    """Whether everybody may read it, and enter each folder above it."""
    folders = all(folder.stat().st_mode & stat.S_IXOTH for folder in path.parents)
    return folders and bool(path.stat().st_mode & stat.S_IROTH)
