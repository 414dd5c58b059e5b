"""The system-call filter of the sandbox, assembled as a classic BPF program for `bwrap --seccomp`.

It is a second layer behind the namespaces. Calls that only attacks on the kernel, a neighbour or the
machine's memory need fail with EPERM. Newer calls (numbers from 424: clone3, io_uring, the new mount calls)
and those of the x32 ABI fail with ENOSYS, and sockets other than AF_UNIX with EACCES. Setting a file's times
does nothing, because the times of devices, which are the machine's own files, are visible in other sandboxes.
A call with another architecture's numbers kills the process.
Linux on x86_64 and aarch64 only; elsewhere there is no filter and no sandbox.
Source: linux/seccomp.h, linux/bpf_common.h and the kernel's two system-call tables.
"""

import errno
import struct


def _table(text: str) -> dict[str, tuple[int | None, int | None]]:
    """System call → its number on x86_64 and on aarch64; `-`: the machine has no such call."""
    words = iter(text.split())
    rows = zip(words, words, words, strict=True)
    return {name: (_number(x86_64), _number(aarch64)) for name, x86_64, aarch64 in rows}


def _number(word: str) -> int | None:
    return None if word == "-" else int(word)


_DENIED = _table("""
    _sysctl            156   -    acct               163  89    add_key            248 217
    adjtimex           159 171    bpf                321 280    chroot             161  51
    clock_adjtime      305 266    clock_settime      227 112    create_module      174   -
    delete_module      176 106    fanotify_init      300 262    fanotify_mark      301 263
    finit_module       313 273    get_kernel_syms    177   -    get_mempolicy      239 236
    init_module        175 105    inotify_init       253   -    inotify_init1      294  26
    io_setup           206   0    ioperm             173   -    iopl               172   -
    ioprio_set         251  30    kcmp               312 272    kexec_file_load    320 294
    kexec_load         246 104    keyctl             250 219    lookup_dcookie     212  18
    mbind              237 235    memfd_create       319 279    migrate_pages      256 238
    mlock              149 228    mlock2             325 284    mlockall           151 230
    modify_ldt         154   -    mount              165  40    move_pages         279 239
    mq_open            240 180    msgget              68 186    name_to_handle_at  303 264
    nfsservctl         180  42    open_by_handle_at  304 265    perf_event_open    298 241
    personality        135  92    pivot_root         155  41    pkey_alloc         330 289
    pkey_free          331 290    pkey_mprotect      329 288    process_vm_readv   310 270
    process_vm_writev  311 271    ptrace             101 117    query_module       178   -
    quotactl           179  60    reboot             169 142    remap_file_pages   216 234
    request_key        249 218    sched_setaffinity  203 122    sched_setattr      314 274
    sched_setparam     142 118    sched_setscheduler 144 119    seccomp            317 277
    semget              64 190    set_mempolicy      238 237    setdomainname      171 162
    sethostname        170 161    setns              308 268    setpriority        141 140
    settimeofday       164 170    shmget              29 194    splice             275  76
    swapoff            168 225    swapon             167 224    sysfs              139   -
    syslog             103 116    tee                276  77    timer_create       222 107
    umount2            166  39    unshare            272  97    uselib             134   -
    userfaultfd        323 282    ustat              136   -    vhangup            153  58
    vmsplice           278  75
""")
_IGNORED = _table("futimesat 261 -    utime 132 -    utimensat 280 88    utimes 235 -")
_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_ON_ARGUMENTS: dict[str, tuple[int, int]] = {
    "clone": (56, 220),
    "fcntl": (72, 25),
    "ioctl": (16, 29),
    "prlimit64": (302, 261),
    "socket": (41, 198),
    "socketpair": (53, 199),
}
_PIDFD_OPEN, _FIRST_NEW = 434, 424  # from 424 on, all machines have the same numbers
_X32 = 0x40000000
_NEW_NAMESPACES = 0x7E020000
_AF_UNIX = 1
_TERMINAL_REQUESTS = (0x5412, 0x541C, 0x5423)
"""TIOCSTI and TIOCLINUX type into a terminal; TIOCSETD makes the kernel load a driver for one."""
_F_NOTIFY = 1026
"""Like inotify, it reports what others do with files that a sandbox also sees, such as libraries."""
_NUMBER, _ARCH = 0, 4  # offsets in struct seccomp_data
_FIRST, _SECOND = 16, 24
"""Offsets of an argument's low half; the checked arguments have 32 bits in the kernel as well."""
_STEP_BYTES = 8
_LOAD, _EQUAL, _AT_LEAST, _HAS_BITS, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_DONE = 0
"""Error code 0: the call is not made, but it is reported as successful."""


def filter_program(machine: str) -> bytes:
    """`struct sock_filter`s for a machine (`platform.machine()`). Raises KeyError if it is unknown."""
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
    column = list(_AUDIT_ARCH).index(machine)
    for calls, verdict in ((_DENIED, _refuse(errno.EPERM)), (_IGNORED, _refuse(_DONE))):
        for number in (numbers[column] for numbers in calls.values()):
            if number is not None:
                program += [_step(_EQUAL, number, 0, 1), verdict]
    program += _on_arguments({name: numbers[column] for name, numbers in _ON_ARGUMENTS.items()})
    program.append(_step(_RETURN, _ALLOW))
    return b"".join(program)


def _on_arguments(numbers: dict[str, int]) -> list[bytes]:
    """Tests of calls that are dangerous only with some arguments."""
    namespaces, own_process = _step(_HAS_BITS, _NEW_NAMESPACES, 0, 1), _step(_EQUAL, 0, 1, 0)
    local, watching = _step(_EQUAL, _AF_UNIX, 1, 0), _step(_EQUAL, _F_NOTIFY, 0, 1)
    requests = [_step(_EQUAL, each, 0, 1) + _refuse(errno.EPERM) for each in _TERMINAL_REQUESTS]
    return [
        _for_call(numbers["clone"], _FIRST, namespaces + _refuse(errno.EPERM)),
        _for_call(numbers["fcntl"], _SECOND, watching + _refuse(errno.EPERM)),
        _for_call(numbers["prlimit64"], _FIRST, own_process + _refuse(errno.EPERM)),
        _for_call(numbers["socket"], _FIRST, local + _refuse(errno.EACCES)),
        _for_call(numbers["socketpair"], _FIRST, local + _refuse(errno.EACCES)),
        _for_call(numbers["ioctl"], _SECOND, b"".join(requests)),
    ]


def _for_call(number: int, argument: int, tests: bytes) -> bytes:
    """Steps that test an argument of one call; if none of them refuses the call, it is allowed."""
    inside = _step(_LOAD, argument) + tests + _step(_RETURN, _ALLOW)
    return _step(_EQUAL, number, 0, len(inside) // _STEP_BYTES) + inside


def _refuse(code: int) -> bytes:
    return _step(_RETURN, _ERRNO | code)


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)
