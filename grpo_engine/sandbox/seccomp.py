"""The system-call filter of the sandbox, assembled as a classic BPF program for `bwrap --seccomp`.

A second layer behind the namespaces: calls that only an attack on the kernel, on a neighbour or on the
machine's memory needs fail with EPERM, newer calls (numbers from 424) with ENOSYS, sockets other than
AF_UNIX with EACCES. Boundary: Linux on x86_64 and aarch64; elsewhere there is no filter, hence no sandbox.
Source: linux/seccomp.h, linux/bpf_common.h and the kernel's two system-call tables.
"""

from __future__ import annotations

import errno
import struct

# name: (number on x86_64, number on aarch64); None where the machine has no such call
_DENIED: dict[str, tuple[int | None, int | None]] = {
    "_sysctl": (156, None),
    "acct": (163, 89),
    "add_key": (248, 217),
    "adjtimex": (159, 171),
    "bpf": (321, 280),
    "chroot": (161, 51),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "create_module": (174, None),
    "delete_module": (176, 106),
    "fanotify_init": (300, 262),
    "finit_module": (313, 273),
    "init_module": (175, 105),
    "io_setup": (206, 0),
    "ioperm": (173, None),
    "iopl": (172, None),
    "ioprio_set": (251, 30),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "lookup_dcookie": (212, 18),
    "mbind": (237, 235),
    "memfd_create": (319, 279),
    "migrate_pages": (256, 238),
    "mlock": (149, 228),
    "mlock2": (325, 284),
    "mlockall": (151, 230),
    "modify_ldt": (154, None),
    "mount": (165, 40),
    "move_pages": (279, 239),
    "mq_open": (240, 180),
    "msgget": (68, 186),
    "name_to_handle_at": (303, 264),
    "nfsservctl": (180, 42),
    "open_by_handle_at": (304, 265),
    "perf_event_open": (298, 241),
    "personality": (135, 92),
    "pivot_root": (155, 41),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "quotactl": (179, 60),
    "reboot": (169, 142),
    "remap_file_pages": (216, 234),
    "request_key": (249, 218),
    "sched_setaffinity": (203, 122),
    "sched_setattr": (314, 274),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "semget": (64, 190),
    "set_mempolicy": (238, 237),
    "setdomainname": (171, 162),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "setpriority": (141, 140),
    "settimeofday": (164, 170),
    "shmget": (29, 194),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "uselib": (134, None),
    "userfaultfd": (323, 282),
    "vhangup": (153, 58),
}
_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_CLONE, _SOCKET, _PRLIMIT = (56, 220), (41, 198), (302, 261)
_PIDFD_OPEN, _FIRST_NEW = 434, 424  # from 424 on, all machines share their numbers
_X32 = 0x40000000
_NEW_NAMESPACES = 0x7E020000
_AF_UNIX = 1
_NUMBER, _ARCH, _FIRST_ARGUMENT = 0, 4, 16  # offsets in struct seccomp_data; the argument's low half
_LOAD, _EQUAL, _AT_LEAST, _HAS_BITS, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000


def supported(machine: str) -> bool:
    return machine in _AUDIT_ARCH


def filter_program(machine: str) -> bytes:
    """`struct sock_filter`s for a machine (`platform.machine()`). Raises KeyError where it is not known."""
    column = list(_AUDIT_ARCH).index(machine) if supported(machine) else -1
    program = [
        _step(_LOAD, _ARCH),
        _step(_EQUAL, _AUDIT_ARCH[machine], 1, 0),
        _step(_RETURN, _KILL),
        _step(_LOAD, _NUMBER),
        _step(_AT_LEAST, _X32, 0, 1),
        _refuse(errno.ENOSYS),
        _step(_EQUAL, _PIDFD_OPEN, 2, 0),
        _step(_AT_LEAST, _FIRST_NEW, 0, 1),
        _refuse(errno.ENOSYS),
    ]
    for numbers in _DENIED.values():
        number = numbers[column]
        if number is not None:
            program += [_step(_EQUAL, number, 0, 1), _refuse(errno.EPERM)]
    program += _on_argument(_SOCKET[column], (_EQUAL, _AF_UNIX, 1, 0), errno.EACCES)
    program += _on_argument(_PRLIMIT[column], (_EQUAL, 0, 1, 0), errno.EPERM)
    program += _on_argument(_CLONE[column], (_HAS_BITS, _NEW_NAMESPACES, 0, 1), errno.EPERM)
    program.append(_step(_RETURN, _ALLOW))
    return b"".join(program)


def _on_argument(number: int, test: tuple[int, int, int, int], code: int) -> list[bytes]:
    """For one call: refuse it, unless the test of its first argument jumps over the refusal."""
    return [
        _step(_EQUAL, number, 0, 4),
        _step(_LOAD, _FIRST_ARGUMENT),
        _step(*test),
        _refuse(code),
        _step(_RETURN, _ALLOW),
    ]


def _refuse(code: int) -> bytes:
    return _step(_RETURN, _ERRNO | code)


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)
