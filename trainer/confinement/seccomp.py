"""A seccomp filter: system calls that this process, its threads and its children cannot make.

Landlock knows files and TCP. This filter takes what it leaves: UDP and every other network, and
connections to the sockets of other programs of the machine, over which a process can have a service
manager or a container engine do what it may not do itself. The program is classic BPF, as in
`linux/filter.h` and `linux/seccomp.h`.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys
from typing import NamedTuple

from gossamer.trainer.confinement.system_calls import system_call

_SET_MODE_FILTER, _FLAG_ALL_THREADS = 1, 1  # SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000

# Instructions: load a 32-bit word of the call's data, compare, mask, return.
_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _AND, _RETURN = 0x20, 0x15, 0x35, 0x54, 0x06
# Offsets of `struct seccomp_data`: number, architecture, low words of the first two arguments.
_NUMBER, _ARCHITECTURE, _FIRST, _SECOND = 0, 4, 16, 24

_AF_UNIX = 1
_SOCK_STREAM, _SOCK_SEQPACKET, _SOCK_TYPE_MASK = 1, 5, 0xF
# From here on x86-64 counts calls with 32-bit pointers, which would be a way around the numbers.
_X32_FIRST = 0x40000000


class _Architecture(NamedTuple):
    audit: int
    seccomp: int
    socket: int
    socketpair: int
    denied: tuple[int, ...]
    """connect; truncate (by path: Landlock checks it from ABI 3 on); ptrace, process_vm_writev and
    pidfd_getfd, which reach into other processes; io_uring_setup, whose rings open sockets."""


_ARCHITECTURES = {
    "x86_64": _Architecture(0xC000003E, 317, 41, 53, (42, 76, 101, 311, 438, 425)),
    "aarch64": _Architecture(0xC00000B7, 277, 198, 199, (203, 45, 117, 271, 438, 425)),
}


class SeccompError(OSError):
    """No filter was installed. The message says why, for people."""


def forbid_network() -> None:
    """Takes from this process, with all its threads, all sockets but local streams of its own, and
    all connecting. What is connected stays so. Needs no_new_privs. It cannot be undone. What is
    refused fails with EACCES.

    Local streams can be made, because CUDA makes one for itself; they cannot be connected.

    Raises:
        SeccompError: nothing was taken.
    """
    machine = platform.machine()
    if machine not in _ARCHITECTURES or sys.maxsize < 2**32 or sys.platform != "linux":
        raise SeccompError(f"the network filter does not know {platform.system()} on {machine}")
    program = _program(_ARCHITECTURES[machine])
    instructions = ctypes.create_string_buffer(program, len(program))
    # struct sock_fprog: a length of 16 bits, and a pointer at its own alignment.
    header = ctypes.create_string_buffer(
        struct.pack("@HP", len(program) // 8, ctypes.addressof(instructions))
    )
    number = _ARCHITECTURES[machine].seccomp
    failed, code = system_call(number, _SET_MODE_FILTER, _FLAG_ALL_THREADS, header)
    if failed > 0:
        raise SeccompError("a thread of this process has a seccomp filter of its own")
    if failed:
        raise SeccompError(f"the kernel refuses a seccomp filter ({os.strerror(code)})")


def _program(on: _Architecture) -> bytes:
    """The filter. Jumps count instructions forward, so the three ends stand at fixed places."""
    deny = _ERRNO | errno.EACCES
    head = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_JUMP_EQUAL, 1, 0, on.audit),
        (_RETURN, 0, 0, deny),
        (_LOAD, 0, 0, _NUMBER),
        (_JUMP_AT_LEAST, 0, 1, _X32_FIRST),
        (_RETURN, 0, 0, deny),
    ]
    for number in on.denied:
        head += [(_JUMP_EQUAL, 0, 1, number), (_RETURN, 0, 0, deny)]
    sockets = [
        (_JUMP_EQUAL, 2, 0, on.socket),
        (_JUMP_EQUAL, 1, 0, on.socketpair),
        (_RETURN, 0, 0, _ALLOW),
        (_LOAD, 0, 0, _FIRST),
        (_JUMP_EQUAL, 1, 0, _AF_UNIX),
        (_RETURN, 0, 0, deny),
        # Not datagrams: those go to any address without a connection.
        (_LOAD, 0, 0, _SECOND),
        (_AND, 0, 0, _SOCK_TYPE_MASK),
        (_JUMP_EQUAL, 2, 0, _SOCK_STREAM),
        (_JUMP_EQUAL, 1, 0, _SOCK_SEQPACKET),
        (_RETURN, 0, 0, deny),
        (_RETURN, 0, 0, _ALLOW),
    ]
    return b"".join(struct.pack("=HBBI", *each) for each in head + sockets)
