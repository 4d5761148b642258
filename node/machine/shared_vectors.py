"""The vectors in memory that the daemon and its trainer share by file descriptors."""

from __future__ import annotations

import os

import numpy as np
from numpy.typing import NDArray

from gossamer.trainer.ipc import memory


class SharedVectors:
    """`base`, `pseudo_gradient` and, in a run with audits, `audited`, fp32 (num_parameters,) each.

    They belong to the daemon. Workers inherit the descriptors.
    """

    base: NDArray[np.float32]
    """The newest committed state; the daemon writes, the worker reads."""
    pseudo_gradient: NDArray[np.float32]
    """The work of the round that the newest Finished told of; the worker writes it from Begin on,
    the daemon reads it between Finished and the next Begin."""
    audited: NDArray[np.float32] | None = None
    """Parameters that are audited; None in a run without audits. They take memory while they are
    used."""
    audited_fd: int | None = None

    def __init__(self, num_parameters: int, *, has_audits: bool = False) -> None:
        """Reserves 8 bytes a parameter. Raises OSError: not enough memory."""
        self.fds: list[int] = []
        try:
            self.base_fd = self._make("gossamer-base", num_parameters)
            self.base = memory.open_vector(self.base_fd, num_parameters)
            self.pseudo_gradient_fd = self._make("gossamer-pseudo-gradient", num_parameters)
            self.pseudo_gradient = memory.open_vector(self.pseudo_gradient_fd, num_parameters)
            if has_audits:
                fd = self._make("gossamer-audited", num_parameters, is_reserved=False)
                self.audited_fd, self.audited = fd, memory.open_vector(fd, num_parameters)
        except BaseException:
            self.release()
            raise

    def _make(self, name: str, num_parameters: int, *, is_reserved: bool = True) -> int:
        fd = memory.create(name, num_parameters, is_reserved=is_reserved)
        self.fds.append(fd)
        return fd

    def give_back_audited(self) -> None:
        """Returns the memory of `audited` to the system. The worker must not be reading it."""
        if self.audited_fd is not None:
            memory.give_back(self.audited_fd)

    def release(self) -> None:
        """Closes the descriptors; call it when no worker is to be started any more. The vectors
        stay mapped while any object refers to them."""
        self.audited_fd = None
        while self.fds:
            os.close(self.fds.pop())
