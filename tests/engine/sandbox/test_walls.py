"""What a call must not see or leave: descriptors, sockets, neighbours, others' files, processes, memory."""

import functools
import json
import os
import socket
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from grpo_engine.sandbox import Limits, PythonServer, capability, launch
from grpo_engine.sandbox.memory import held_bytes, process_tree
from grpo_engine.sandbox.server import CALLS_PER_SANDBOX
from tests.engine.sandbox.patience import PATIENCE

MEBIBYTE = 2**20
INSIDE = """
import ctypes, mmap, os, signal, socket, stat, time
libc = ctypes.CDLL(None, use_errno=True)

def descriptors():
    found = []
    for fd in range(1024):
        try: found.append(stat.S_IFMT(os.fstat(fd).st_mode))
        except OSError: pass
    return sorted(set(found)), len(found)

def abstract(name):
    with socket.socket(socket.AF_UNIX) as door:
        return door.connect_ex('\\0' + name)

def others():
    alive = []
    for pid in range(1, 2000):
        try: os.kill(pid, 0)
        except ProcessLookupError: continue
        except PermissionError: pass
        alive.append(pid)
    return len(alive)

def devices():
    found = {}
    for name in sorted(os.listdir('/dev')):
        info = os.lstat('/dev/' + name)
        if stat.S_ISBLK(info.st_mode): found[name] = 'block'
        if stat.S_ISCHR(info.st_mode): found[name] = os.major(info.st_rdev)
    made = []
    for kind in (stat.S_IFCHR, stat.S_IFBLK):
        try: os.mknod('/tmp/node', kind | 0o600, os.makedev(1, 1)); made.append(kind)
        except OSError: pass
    return found, made

def crash():
    os.abort()

def linked():
    os.symlink('/proc/1/root', '/tmp/a'); os.symlink('/..', '/tmp/b'); os.symlink('/etc/passwd', '/tmp/c')
    found = []
    for path in ('/tmp/a/etc/passwd', '/tmp/b/etc/passwd', '/tmp/c', '/../../etc/passwd', '/tmp/../proc/1'):
        try: found.append(os.path.getsize(path))
        except OSError: pass
    return found

def left(name):
    seen = sorted(os.listdir('/tmp'))
    for place in ('/tmp/', '/dev/shm/', '/var/tmp/', '/'):
        try: open(place + name, 'w').write('x')
        except OSError: pass
    return seen

def touched(paths):
    for path in paths: os.utime(path)
    return [os.stat(path).st_mtime_ns for path in paths]

def untouched():
    folder = os.stat('/tmp')
    os.listdir('/tmp')
    return folder.st_atime_ns == folder.st_ctime_ns

def watchers():
    folder = os.open(os.path.dirname(os.__file__), os.O_RDONLY)
    kept = [libc.inotify_init(), libc.inotify_init1(0)]
    return [*kept, libc.fcntl(folder, 1026, 1)]

def terminal():
    main, side = os.openpty()
    return [libc.ioctl(side, request, ctypes.byref(ctypes.c_int(2))) for request in (0x5412, 0x5423)]

def together(count, size):
    for _ in range(count):
        if os.fork() == 0:
            block = bytearray(size)
            for place in range(0, size, 4096): block[place] = 1
            time.sleep(3600)
    time.sleep(3600)

def shared(size):
    block = mmap.mmap(-1, size)
    for place in range(0, size, 4096): block[place] = 1
    time.sleep(3600)

def quick(n): return n
"""


@pytest.fixture(scope="module")
def server() -> Any:
    with PythonServer(INSIDE) as server:
        yield server


def call(server: PythonServer, name: str, *args: Any) -> Any:
    outcome = server.request(PATIENCE, mode="call", call=name, args=list(args), kwargs={})
    assert outcome.value is not None, outcome.error
    return json.loads(outcome.value)


def test_no_file_descriptor_of_the_parent_is_open_inside(server: PythonServer, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("key")
    held = os.open(secret, os.O_RDONLY)
    os.set_inheritable(held, True)
    with socket.socket(socket.AF_UNIX) as door:
        door.set_inheritable(True)
        with PythonServer(INSIDE) as fresh:
            kinds, count = call(fresh, "descriptors")
    os.close(held)
    pipe, regular, device = 0o010000, 0o100000, 0o020000
    assert set(kinds) <= {pipe, regular, device}  # its own unnamed input is the one regular file
    assert count <= 5


def test_abstract_sockets_of_the_host_are_unreachable(server: PythonServer) -> None:
    name = f"grpo-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as door:
        door.bind("\0" + name)
        door.listen()
        assert call(server, "abstract", name) != 0
        with socket.socket(socket.AF_UNIX) as friend:
            assert friend.connect_ex("\0" + name) == 0


def test_no_process_of_the_host_can_be_signalled(server: PythonServer) -> None:
    assert call(server, "others") <= 3  # the namespace's first, the fork server, the call itself


def test_only_devices_without_data_are_visible(server: PythonServer) -> None:
    found, made = call(server, "devices")
    assert set(found.values()) <= {1, 5, 136}  # memory devices such as null, terminals, their other ends
    assert not {"mem", "kmem", "port", "kmsg"} & set(found)
    assert made == []


def test_the_hosts_devices_cannot_be_changed(server: PythonServer) -> None:
    paths = ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty"]
    before = [os.stat(path).st_mtime_ns for path in paths]
    assert call(server, "touched", paths) == before
    assert [os.stat(path).st_mtime_ns for path in paths] == before


def test_file_access_of_other_processes_cannot_be_watched(server: PythonServer) -> None:
    """The libraries that it sees are those that others load."""
    assert call(server, "watchers") == [-1, -1, -1]


def test_reading_the_folder_leaves_no_trace_for_the_next_call() -> None:
    """The first one sets a time, which a later call could read, so that one gets a folder of its own."""
    with PythonServer(INSIDE) as fresh:
        assert [call(fresh, "untouched") for _ in range(2)] == [True, True]


def test_a_crash_leaves_no_core_file(server: PythonServer) -> None:
    outcome = server.request(PATIENCE, mode="call", call="crash", args=[], kwargs={})
    assert outcome.value is None
    assert "status -6" in outcome.error
    assert call(server, "left", "x") == []


def test_links_do_not_lead_outside(server: PythonServer) -> None:
    assert call(server, "linked") == []


def test_files_left_anywhere_are_gone_in_the_next_call(server: PythonServer) -> None:
    assert [call(server, "left", f"file-{n}") for n in range(3)] == [[], [], []]


def test_a_terminal_can_be_opened_but_its_driver_not_changed(server: PythonServer) -> None:
    assert call(server, "terminal") == [-1, -1]


@pytest.mark.parametrize(("name", "args"), [("together", [6, 60 * MEBIBYTE]), ("shared", [200 * MEBIBYTE])])
def test_processes_over_the_total_memory_limit_are_killed(name: str, args: list[int]) -> None:
    with PythonServer(INSIDE, Limits(memory_bytes=150 * MEBIBYTE)) as small:
        assert call(small, "quick", 1) == 1
        outcome = small.request(PATIENCE, mode="call", call=name, args=args, kwargs={})
        assert outcome.value is None
        assert not outcome.timed_out
        if name == "together":
            assert "used more than 157,286,400 bytes in total" in outcome.error
        assert call(small, "quick", 2) == 2


def test_memory_is_counted_over_all_descendants() -> None:
    assert os.getpid() in process_tree(os.getpid())
    assert held_bytes(os.getpid()) > 10 * MEBIBYTE
    assert held_bytes(2**22 + 1) == 0


def test_processes_may_exit_while_the_memory_is_counted() -> None:
    stop = threading.Event()

    def churn() -> None:
        while not stop.is_set():
            subprocess.run(["/bin/true"], check=True)

    threads = [threading.Thread(target=churn) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        assert all(held_bytes(os.getpid()) > 10 * MEBIBYTE for _ in range(300))
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_a_self_test_that_could_not_run_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    attack, calls = capability._attack, []

    def fails_once(interpreter: launch.Interpreter) -> dict[str, bool]:
        calls.append(interpreter)
        if len(calls) <= len(launch.interpreters()):
            raise launch.SandboxUnavailable("no answer in time")
        return attack(interpreter)

    monkeypatch.setattr(capability, "_attack", fails_once)
    monkeypatch.setattr(capability, "_finished_test", functools.cache(capability._finished_test.__wrapped__))
    assert capability.self_test().available
    num_attacks = len(calls)
    assert capability.self_test().available
    assert len(calls) == num_attacks


def test_after_many_calls_no_process_is_left() -> None:
    before = set(process_tree(os.getpid()))
    with PythonServer("def quick(n): return n") as busy:
        values = [call(busy, "quick", n) for n in range(CALLS_PER_SANDBOX + 20)]
        assert busy._sandbox is not None
        inside = set(process_tree(busy._sandbox._process.pid))
        assert len(inside) <= 3  # bubblewrap, the namespace's first process, the fork server
    assert values == list(range(CALLS_PER_SANDBOX + 20))
    assert not {pid for pid in inside if Path(f"/proc/{pid}").exists()}
    assert set(process_tree(os.getpid())) <= before


def test_without_disable_userns_the_filter_still_refuses_namespaces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(launch, "_no_nested_users", list)  # as if /proc/sys is read-only
    interpreter = capability.self_test().require()
    assert all(capability._attack(interpreter).values())


def test_a_kernel_without_user_namespaces_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "_MAX_USER_NAMESPACES", "/proc/sys/user/none")
    with pytest.raises(launch.SandboxUnavailable, match="no user namespaces"):
        launch.command(capability.self_test().require(), seccomp_fd=0, info_fd=0)


@pytest.mark.parametrize("attack", ["network", "processes"])
def test_an_attack_that_succeeds_means_no_sandbox_and_is_named(
    monkeypatch: pytest.MonkeyPatch, attack: str
) -> None:
    monkeypatch.setattr(capability, "_attack", lambda _: {"writes": True, attack: False})
    monkeypatch.setattr(capability, "_finished_test", capability._finished_test.__wrapped__)
    found = capability.self_test()
    assert not found.available
    assert f"not contained: {attack}" in found.reason


def test_a_machine_without_bubblewrap_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    found = launch.program
    monkeypatch.setattr(launch, "program", lambda name: found("no-such-bwrap" if name == "bwrap" else name))
    monkeypatch.setattr(capability, "_finished_test", capability._finished_test.__wrapped__)
    result = capability.self_test()
    assert not result.available
    assert "no-such-bwrap is not installed" in result.reason
