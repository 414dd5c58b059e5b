"""The system-call filter, run as data for both machines: a program and a call go in, a verdict comes out."""

import ctypes
import errno
import struct

import pytest

from grpo_engine.sandbox.seccomp import _DENIED, _IGNORED, _ON_ARGUMENTS, filter_program

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
I386, X32 = 0x40000003, 0x40000000
ALLOW, KILL = 0x7FFF0000, 0x80000000
EPERM, EACCES, ENOSYS = (0x00050000 | code for code in (errno.EPERM, errno.EACCES, errno.ENOSYS))
DONE = 0x00050000
AF_UNIX, FAMILIES = 1, range(2, 46)
NAMESPACES = {
    "time": 0x80,
    "mount": 0x20000,
    "cgroup": 0x02000000,
    "uts": 0x04000000,
    "ipc": 0x08000000,
    "user": 0x10000000,
    "pid": 0x20000000,
    "net": 0x40000000,
}
FORK, THREAD = 0x01200011, 0x003D0F00
MUST_GO = {
    *("ptrace", "process_vm_readv", "process_vm_writev", "kcmp", "mount", "umount2", "pivot_root"),
    *("chroot", "setns", "unshare", "keyctl", "add_key", "request_key", "bpf"),
    *(
        "perf_event_open",
        "userfaultfd",
        "kexec_load",
        "kexec_file_load",
        "init_module",
        "finit_module",
        "delete_module",
    ),
    *("personality", "open_by_handle_at", "name_to_handle_at", "quotactl", "swapon", "swapoff", "reboot"),
    *("syslog", "acct", "memfd_create", "io_setup", "shmget", "semget", "msgget"),
    *("inotify_init", "inotify_init1", "fanotify_init"),
    *("mq_open", "settimeofday", "clock_settime", "adjtimex", "sethostname"),
}
NEW_CALLS = {
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsmount": 432,
    "fspick": 433,
    "clone3": 435,
    "pidfd_getfd": 438,
    "process_madvise": 440,
    "mount_setattr": 442,
    "quotactl_fd": 443,
    "memfd_secret": 447,
}

machines = pytest.mark.parametrize("machine", ARCHITECTURES)


def verdict(machine: str, number: int, *arguments: int, arch: int | None = None) -> int:
    """What the kernel would answer: classic BPF, as far as a filter uses it."""
    values = (*arguments, *[0] * (6 - len(arguments)))
    data = struct.pack("=iIQ6Q", number - 2**32 if number >= 2**31 else number, 0, 0, *values)
    data = data[:4] + struct.pack("=I", arch or ARCHITECTURES[machine]) + data[8:]
    steps = list(struct.iter_unpack("=HBBI", filter_program(machine)))
    accumulator, place = 0, 0
    while True:
        code, if_true, if_false, value = steps[place]
        place += 1
        match code:
            case 0x06:
                return value
            case 0x20:
                (accumulator,) = struct.unpack_from("=I", data, value)
            case 0x15 | 0x35 | 0x45:
                holds = {
                    0x15: accumulator == value,
                    0x35: accumulator >= value,
                    0x45: accumulator & value != 0,
                }
                place += if_true if holds[code] else if_false


def numbers(machine: str) -> dict[str, int]:
    column = list(ARCHITECTURES).index(machine)
    table = {**_DENIED, **_IGNORED, **_ON_ARGUMENTS}
    return {name: each[column] for name, each in table.items() if each[column] is not None}  # type: ignore[misc]


@machines
def test_numbers_equal_those_of_the_kernels_table(machine: str) -> None:
    library = ctypes.CDLL("libseccomp.so.2")
    resolve = library.seccomp_syscall_resolve_name_arch
    found = {
        name: resolve(ctypes.c_uint32(ARCHITECTURES[machine]), name.encode()) for name in numbers(machine)
    }
    assert found == numbers(machine)


@machines
def test_calls_needed_only_for_attacks_are_refused(machine: str) -> None:
    assert set(_DENIED) >= MUST_GO
    column = list(ARCHITECTURES).index(machine)
    denied = [each[column] for each in _DENIED.values() if each[column] is not None]
    assert {verdict(machine, number) for number in denied if number is not None} == {EPERM}


@machines
def test_setting_file_times_succeeds_without_effect(machine: str) -> None:
    assert {verdict(machine, numbers(machine)[name]) for name in _IGNORED if name in numbers(machine)} == {
        DONE
    }


@machines
def test_new_calls_do_not_exist(machine: str) -> None:
    assert {verdict(machine, number) for number in (*NEW_CALLS.values(), 424, 460, 2000)} == {ENOSYS}
    assert verdict(machine, 434) == ALLOW  # pidfd_open: the fork server watches its child with it


@machines
def test_processes_may_be_created_but_namespaces_not(machine: str) -> None:
    clone = numbers(machine)["clone"]
    assert {verdict(machine, clone, flags) for flags in (FORK, THREAD)} == {ALLOW}
    for name, flag in NAMESPACES.items():
        if name != "time":  # clone has no such flag: its bit is one of the signal's
            assert verdict(machine, clone, FORK | flag) == EPERM, name
    assert verdict(machine, numbers(machine)["unshare"], NAMESPACES["time"]) == EPERM


@machines
@pytest.mark.parametrize("call", ["socket", "socketpair"])
def test_only_unix_sockets_may_be_created(machine: str, call: str) -> None:
    number = numbers(machine)[call]
    assert verdict(machine, number, AF_UNIX, 1) == ALLOW
    assert {verdict(machine, number, family, 1) for family in (0, *FAMILIES)} == {EACCES}
    assert verdict(machine, number, 2**32 + 2, 1) == EACCES  # the kernel looks at 32 bits of it as well


@machines
def test_limits_of_others_and_requests_to_drivers_and_watchers_are_refused(machine: str) -> None:
    assert verdict(machine, numbers(machine)["prlimit64"], 0) == ALLOW
    assert verdict(machine, numbers(machine)["prlimit64"], 1) == EPERM
    assert verdict(machine, numbers(machine)["ioctl"], 0, 0x5401) == ALLOW
    for command, expected in ((1, ALLOW), (1026, EPERM), (2**32 + 1026, EPERM)):  # F_GETFD, F_NOTIFY
        assert verdict(machine, numbers(machine)["fcntl"], 0, command) == expected
    for request in (0x5412, 0x541C, 0x5423, 2**32 + 0x5412):
        assert verdict(machine, numbers(machine)["ioctl"], 0, request) == EPERM


@machines
def test_calls_that_python_needs_are_allowed(machine: str) -> None:
    needed = {
        "x86_64": {"read": 0, "mmap": 9, "futex": 202, "openat": 257, "getrandom": 318, "rseq": 334},
        "aarch64": {"read": 63, "mmap": 222, "futex": 98, "openat": 56, "getrandom": 278, "rseq": 293},
    }[machine]
    assert {verdict(machine, number) for number in needed.values()} == {ALLOW}


@machines
def test_other_architectures_end_the_process_and_the_x32_abi_does_not_exist(machine: str) -> None:
    others = (I386, 0x40000028, *(arch for name, arch in ARCHITECTURES.items() if name != machine))
    assert {verdict(machine, 0, arch=arch) for arch in others} == {KILL}
    assert {verdict(machine, X32 | number) for number in (0, 101, 520)} == {ENOSYS}
    assert verdict(machine, 0xFFFFFFFF) == ENOSYS


@machines
def test_a_program_fits_into_the_kernel(machine: str) -> None:
    program = filter_program(machine)
    assert len(program) % 8 == 0
    assert len(program) // 8 < 4096


def test_other_machines_have_no_filter() -> None:
    with pytest.raises(KeyError):
        filter_program("riscv64")
