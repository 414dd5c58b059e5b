"""Command lines that start a process in the sandbox: an unprivileged uid first, then bubblewrap.

As root, bubblewrap would map its user onto the host's root, so the uid is dropped before it starts. An
interpreter that this uid cannot reach (below /root, for example) is first bound to a reachable path, in a
separate mount namespace. Inside there is no network, /proc or /etc, no writable file system except a small
/tmp, no program except the interpreter, and no other process. Installed packages are visible on request only.
Linux only.
"""

import os
import shutil
import stat
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

UNPRIVILEGED_UID = 65534
TMP_BYTES = 64 * 2**20
_STAGES = ("/mnt", "/media", "/srv")
"""Where an interpreter and packages that the uid cannot reach are bound, in a separate mount namespace."""
_LIBRARIES = ("/usr/lib", "/usr/lib64", "/lib", "/lib64", "/usr/share/zoneinfo")
_MAX_USER_NAMESPACES = "/proc/sys/user/max_user_namespaces"
_FIRST_VICTIM = "echo 1000 >/proc/self/oom_score_adj"
"""Shell command by which the kernel kills a sandbox first if the machine runs out of memory."""


class SandboxUnavailable(Exception):
    """Untrusted code cannot run on this machine; the message gives the reason."""


class Interpreter(NamedTuple):
    """A host's Python that is visible inside, read-only, under its own path."""

    executable: str
    prefix: str
    version: str
    """`3.11`."""
    contained: bool = True
    """Whether it runs in a sandbox; False: see `unsafe.py`."""

    @property
    def hidden(self) -> bool:
        """Whether the unprivileged uid cannot reach it."""
        return not _reachable(Path(self.executable))


def interpreters() -> list[Interpreter]:
    """This process's own Python (the base of a virtual environment), then the system's."""
    own = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
    found = [Interpreter(own, sys.base_prefix, sysconfig.get_python_version())]
    system = os.path.realpath("/usr/bin/python3")
    version = system.removeprefix("/usr/bin/python")
    if os.path.exists(system) and system != own and os.path.isdir(f"/usr/lib/python{version}"):
        found.append(Interpreter(system, "/usr", version))
    return found


def package_folders() -> tuple[str, ...]:
    """The folders of this process's installed packages."""
    ends = ("site-packages", "dist-packages")
    return tuple(path for path in sys.path if path.endswith(ends) and os.path.isdir(path))


def inside(packages: Sequence[str]) -> list[str]:
    """The paths under which a sandbox shows these folders of packages."""
    return [f"/packages/{number}" for number, _ in enumerate(packages)]


def command(
    interpreter: Interpreter,
    *arguments: str,
    seccomp_fd: int,
    info_fd: int,
    packages: Sequence[str] = (),
) -> list[str]:
    """Argument list that runs the interpreter with `arguments` in a fresh sandbox.

    `packages`: folders that are visible inside, read-only. Both descriptors must be passed on to the process.
    Raises SandboxUnavailable if a program is missing.
    """
    staged = _staged(interpreter, packages)
    bubblewrap = [program("bwrap"), "--seccomp", str(seccomp_fd), "--info-fd", str(info_fd)]
    python = [interpreter.executable, *FLAGS, *arguments]
    view = _view(interpreter, packages, staged)
    inner = [*bubblewrap, *_ISOLATION, *_no_nested_users(), *view, "--", *python]
    shell = program("sh")
    unprivileged = [*setpriv(), *inner] if os.geteuid() == 0 else inner
    if not staged:
        return [shell, "-c", f'{_FIRST_VICTIM}; exec "$@"', "sh", *unprivileged]
    pairs = [path for pair in staged.items() for path in pair]
    bound = [shell, "-c", f"{_FIRST_VICTIM}; {_BIND}", "sh", *pairs, "--", *unprivileged]
    return [program("unshare"), "--mount", "--", *bound]


_BIND = (
    'mount -t tmpfs -o mode=755 tmpfs "$(dirname "$2")" || exit 1; '
    'while [ "$1" != -- ]; do mkdir "$2" && mount --bind "$1" "$2" || exit 1; shift 2; done; '
    'shift; exec "$@"'
)
"""Shell commands that bind pairs of paths, up to `--`, and then run the rest of their arguments."""


def _staged(interpreter: Interpreter, packages: Sequence[str]) -> dict[str, str]:
    """Each folder that the unprivileged uid cannot reach, with the path at which it is bound first."""
    if os.geteuid() != 0:
        return {}
    hidden = [interpreter.prefix] if interpreter.hidden else []
    hidden += [folder for folder in packages if not _reachable(Path(folder))]
    seen = (interpreter.prefix, *packages)
    free = [stage for stage in _STAGES if not any(folder.startswith(stage) for folder in seen)]
    return {folder: f"{free[0]}/{number}" for number, folder in enumerate(hidden)}


def setpriv(*options: str, keep: str = "") -> list[str]:
    """Prefix of an unprivileged command. If this process is root, the command gets another uid, no groups,
    and no capability except `keep`."""
    drop: list[str] = []
    if os.geteuid() == 0:
        kept = f"-all,+{keep}" if keep else "-all"
        drop = [f"--inh-caps={kept}", f"--ambient-caps={kept}", f"--bounding-set={kept}"]
        drop += [f"--reuid={UNPRIVILEGED_UID}", f"--regid={UNPRIVILEGED_UID}", "--clear-groups"]
    return [program("setpriv"), *drop, *options, "--"]


def unprivileged_reader_prefix(*paths: str) -> list[str]:
    """Prefix of a command that parses text from models; if this process is root, it drops the privileges.

    It may still read all files if one of these paths is not readable by everyone.
    """
    if os.geteuid() != 0:
        return []
    is_hidden = not all(_reachable(Path(path).resolve()) for path in paths)
    return setpriv(keep="dac_read_search" if is_hidden else "")


_ISOLATION = [
    *("--unshare-all", "--unshare-user", "--cap-drop", "ALL"),
    *("--die-with-parent", "--new-session", "--clearenv", "--hostname", "sandbox"),
    *("--setenv", "HOME", "/tmp", "--setenv", "LANG", "C.UTF-8"),  # noqa: S108 - inside the sandbox
    *("--setenv", "PYTHONHASHSEED", "0"),  # sets iterate in the same order in every run
]
FLAGS = ["-s", "-S", "-P", "-B", "-W", "ignore"]


def _no_nested_users() -> list[str]:
    """Option that forbids user namespaces inside the sandbox's own; the filter refuses them too.

    bubblewrap sets a sysctl for it. In a container /proc/sys is read-only, so there only the filter protects.
    """
    try:
        is_read_only = os.statvfs(_MAX_USER_NAMESPACES).f_flag & os.ST_RDONLY
    except OSError as error:
        raise SandboxUnavailable(f"this kernel has no user namespaces: {error}") from None
    return [] if is_read_only else ["--disable-userns"]


def _view(interpreter: Interpreter, packages: Sequence[str], staged: Mapping[str, str]) -> list[str]:
    """The file system inside: read-only libraries and interpreter, /dev, a small /tmp, nothing else."""
    arguments: list[str] = []
    for folder in _LIBRARIES:
        if os.path.islink(folder):
            arguments += ["--symlink", os.readlink(folder), folder]
        elif os.path.isdir(folder):
            arguments += ["--ro-bind", folder, folder]
    outside = staged.get(interpreter.prefix, interpreter.prefix)
    library = f"{interpreter.prefix}/lib"
    if library not in _LIBRARIES:
        arguments += ["--ro-bind", f"{outside}/lib", library]
    executable = interpreter.executable
    if executable.startswith(f"{interpreter.prefix}/"):
        executable = outside + executable.removeprefix(interpreter.prefix)
    arguments += ["--ro-bind", executable, interpreter.executable]
    arguments += ["--setenv", "LD_LIBRARY_PATH", library]
    installed = f"{library}/python{interpreter.version}/site-packages"
    if os.path.isdir(installed):  # installed packages are visible only if they are listed
        arguments += ["--tmpfs", installed, "--remount-ro", installed]
    for folder, shown in zip(packages, inside(packages), strict=True):
        arguments += ["--ro-bind", staged.get(folder, folder), shown]
    arguments += ["--dev", "/dev", "--remount-ro", "/dev"]
    arguments += ["--size", str(TMP_BYTES), "--tmpfs", "/tmp", "--chdir", "/tmp"]  # noqa: S108
    return [*arguments, "--remount-ro", "/"]


def program(name: str) -> str:
    found = shutil.which(name, path="/usr/bin:/bin:/usr/sbin:/sbin:/usr/local/bin")
    if found is None:
        raise SandboxUnavailable(f"{name} is not installed")
    return found


def _reachable(path: Path) -> bool:
    """Whether every user may read it and enter all its parent folders."""
    folders = all(folder.stat().st_mode & stat.S_IXOTH for folder in path.parents)
    return folders and bool(path.stat().st_mode & stat.S_IROTH)
