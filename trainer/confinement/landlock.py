"""Landlock: a process gives up rights to files, TCP and signals, for itself and its children.

Linux has it since 5.13, for every user. The numbers are those of `linux/landlock.h`; each ABI
version added rights, and older kernels refuse the newer ones. Nothing here loads more than the
standard library, because a restriction holds for the calling thread alone and so has to come before
any library that starts threads.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Iterable
from pathlib import Path

from gossamer.trainer.confinement.system_calls import prctl, system_call

# The same numbers on every architecture that Landlock is on.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_CREATE_RULESET_VERSION = 1
_RULE_PATH_BENEATH = 1
_PR_SET_NO_NEW_PRIVS = 38

# Rights to files (LANDLOCK_ACCESS_FS_...).
_WRITE_FILE = 1 << 1
_REMOVE_DIR, _REMOVE_FILE = 1 << 4, 1 << 5
_MAKE_CHAR, _MAKE_DIR, _MAKE_REG, _MAKE_SOCK = 1 << 6, 1 << 7, 1 << 8, 1 << 9
_MAKE_FIFO, _MAKE_BLOCK, _MAKE_SYM = 1 << 10, 1 << 11, 1 << 12
_REFER = 1 << 13  # ABI 2: renames into another folder
_TRUNCATE = 1 << 14  # ABI 3
_IOCTL_DEV = 1 << 15  # ABI 5

_WRITES = (
    _WRITE_FILE
    | _REMOVE_DIR
    | _REMOVE_FILE
    | _MAKE_CHAR
    | _MAKE_DIR
    | _MAKE_REG
    | _MAKE_SOCK
    | _MAKE_FIFO
    | _MAKE_BLOCK
    | _MAKE_SYM
)
# What a folder gets. Neither links nor sockets nor devices: nobody who works there later, with more
# rights, can be led elsewhere by them.
_IN_A_FOLDER = _WRITE_FILE | _REMOVE_DIR | _REMOVE_FILE | _MAKE_DIR | _MAKE_REG | _REFER | _TRUNCATE
_IN_A_DEVICE = _WRITE_FILE | _TRUNCATE | _IOCTL_DEV

_BIND_TCP, _CONNECT_TCP = 1 << 0, 1 << 1  # ABI 4
_SCOPE_ABSTRACT_UNIX_SOCKET, _SCOPE_SIGNAL = 1 << 0, 1 << 1  # ABI 6
TCP_ABI = 4


class LandlockError(OSError):
    """The kernel does not restrict this process. The message says why, for people."""


def abi_version() -> int:
    """The version of Landlock that this kernel offers; 1 or more.

    Raises:
        LandlockError: it offers none.
    """
    version, code = system_call(_CREATE_RULESET, None, 0, _CREATE_RULESET_VERSION)
    if version >= 1:
        return version
    if code == errno.EOPNOTSUPP:
        raise LandlockError("Landlock is switched off on this machine (the kernel's lsm= list)")
    if code == errno.ENOSYS:
        raise LandlockError("this kernel has no Landlock (Linux 5.13 and newer can have it)")
    raise LandlockError(f"Landlock cannot be used here ({os.strerror(code)})")


def forbid_writes(
    *,
    folders: Iterable[Path],
    devices: Iterable[Path],
    files: Iterable[Path],
    with_tcp: bool,
) -> int:
    """Takes from this process every write but those below `folders`, to `devices`, and to what is
    there already below `files`; TCP, too (`with_tcp`), and signals to other processes, where the
    kernel can. Reading stays as it is. It cannot be undone, and the processes that this one starts
    have it, too.

    Returns the version of Landlock that was used.

    Raises:
        LandlockError: nothing was taken, because the kernel refuses.
        OSError: nothing was taken, because a folder is not there.
    """
    version = abi_version()
    handled = _WRITES
    for since, right in ((2, _REFER), (3, _TRUNCATE), (5, _IOCTL_DEV)):
        handled |= right if version >= since else 0
    tcp = _BIND_TCP | _CONNECT_TCP if with_tcp and version >= TCP_ABI else 0
    scoped = _SCOPE_ABSTRACT_UNIX_SOCKET | _SCOPE_SIGNAL if version >= 6 else 0
    # Older kernels take the longer structure as long as what they do not know is zero.
    attributes = struct.pack("=QQQ", handled, tcp, scoped)
    ruleset, code = system_call(_CREATE_RULESET, attributes, len(attributes), 0)
    if ruleset < 0:
        raise LandlockError(f"Landlock refuses its rules ({os.strerror(code)})")
    try:
        for folder in folders:
            _allow(ruleset, folder, _IN_A_FOLDER & handled)
        for device in devices:
            _allow(ruleset, device, _IN_A_DEVICE & handled)
        for path in files:
            _allow(ruleset, path, (_WRITE_FILE | _TRUNCATE) & handled)
        forbid_new_privileges()
        failed, code = system_call(_RESTRICT_SELF, ruleset, 0)
        if failed:
            raise LandlockError(f"Landlock refuses to restrict ({os.strerror(code)})")
    finally:
        os.close(ruleset)
    return version


def forbid_new_privileges() -> None:
    """No program that this process starts gains rights (setuid, file capabilities).

    Raises:
        LandlockError: the kernel refuses.
    """
    failed, code = prctl(_PR_SET_NO_NEW_PRIVS, 1)
    if failed:
        raise LandlockError(f"the kernel refuses no_new_privs ({os.strerror(code)})")


def _allow(ruleset: int, path: Path, rights: int) -> None:
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        rule = struct.pack("=Qi", rights, descriptor)
        failed, code = system_call(
            _ADD_RULE, ruleset, _RULE_PATH_BENEATH, ctypes.create_string_buffer(rule), 0
        )
        if failed:
            raise LandlockError(f"Landlock refuses a rule for {path} ({os.strerror(code)})")
    finally:
        os.close(descriptor)
