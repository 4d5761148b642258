"""fp32 vectors that the daemon and its trainer share: a file descriptor without a name, mapped by
both."""

from __future__ import annotations

import mmap
import os
import sys
import tempfile

import numpy as np
from numpy.typing import NDArray

FLOAT_BYTES = 4


def create(name: str, num_elements: int, *, is_reserved: bool = True) -> int:
    """A new file descriptor of `num_elements` zeros that goes with its last holder.

    `name` only shows in /proc. The bytes are reserved here, so that too little memory is an
    OSError now and not a bus error in the middle of a step; unless they are rarely used.
    """
    if sys.platform == "linux":
        fd = os.memfd_create(name, os.MFD_CLOEXEC)
    else:
        fd, path = tempfile.mkstemp(prefix=f"{name}-")
        os.unlink(path)
    try:
        os.ftruncate(fd, num_elements * FLOAT_BYTES)
        if is_reserved and hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, 0, num_elements * FLOAT_BYTES)
    except BaseException:
        os.close(fd)
        raise
    return fd


def give_back(fd: int) -> None:
    """Returns the memory behind a descriptor to the system. Its values are zeros afterwards. No
    process may use them meanwhile."""
    size = os.fstat(fd).st_size
    os.ftruncate(fd, 0)
    os.ftruncate(fd, size)


def open_vector(fd: int, num_elements: int) -> NDArray[np.float32]:
    """The descriptor's values, shared and writable: (num_elements,). Unmapped with its last view.

    Raises:
        ValueError: the file has another length.
    """
    size = os.fstat(fd).st_size
    if size != num_elements * FLOAT_BYTES:
        raise ValueError(
            f"shared memory has {size} bytes; {num_elements * FLOAT_BYTES} were expected"
        )
    return np.frombuffer(mmap.mmap(fd, size), dtype=np.float32)
