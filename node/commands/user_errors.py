"""The errors that a person can do something about, as lines to print."""

from __future__ import annotations

import errno

from gossamer.node.app.client import ClientError
from gossamer.node.base.disk_health import DiskError
from gossamer.node.base.settings import ConfigError
from gossamer.node.machine.trainer import TrainerFailedError
from gossamer.node.network.identity import IdentityError
from gossamer.node.network.transport import TransportError
from gossamer.node.peers.run_exchange import JoinError, NotAdmittedError, WrongRunError
from gossamer.node.runs.extending import ExtendError
from gossamer.node.runs.generating import GenerateError
from gossamer.node.runs.inviting import InvitationError
from gossamer.node.runs.needs import TooLargeError
from gossamer.node.runs.preparing import PreparingError
from gossamer.node.runs.rolling_back import RollbackError
from gossamer.node.service.managers import ServiceError
from gossamer.node.storage.block_files import BlockError
from gossamer.node.storage.state_dir import StateDirError, StateDirInUseError
from gossamer.protocol.errors import ManifestError
from gossamer.trainer.export.hugging_face import ExportError
from gossamer.trainer.pretrained.errors import FolderError
from gossamer.trainer.text.corpus_errors import CorpusError

_WITH_PROBLEMS = (ConfigError, CorpusError, FolderError, ManifestError)
"""Errors that carry a list of sentences, one a mistake."""

_WITH_TEXT = (
    BlockError,
    ClientError,
    DiskError,
    ExportError,
    ExtendError,
    GenerateError,
    IdentityError,
    InvitationError,
    JoinError,
    PreparingError,
    RollbackError,
    ServiceError,
    StateDirError,
    TrainerFailedError,
    TransportError,
    OSError,
)

_LASTING = (
    *_WITH_PROBLEMS,
    IdentityError,
    NotAdmittedError,
    StateDirError,
    TooLargeError,
    WrongRunError,
)
"""Errors that no second try mends. A peer that does not answer, a port that is in use or a full
disk may be different in a while."""

_MISTAKES = (errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EINVAL)
"""Errors of the system that a wrong path or missing rights cause. Others are the disk's, which may
be mended or mounted again."""


def explain(error: Exception) -> list[str] | None:
    """Returns one line a problem, or None if the error is a bug and its traceback is wanted."""
    if isinstance(error, _WITH_PROBLEMS):
        return list(error.problems)
    if not isinstance(error, _WITH_TEXT):
        return None
    # Only Python's own OSError: the texts of our subclasses name the file and say what to do.
    if isinstance(error, OSError) and type(error).__module__ == "builtins" and error.filename:
        return [f"{error.filename}: {error.strerror}"]
    return [str(error)]


def exit_status(error: Exception) -> int:
    """Returns the status with which the program ends: 2 if the same command would fail again until
    somebody changes something, so that a service manager does not start it again."""
    if isinstance(error, StateDirInUseError) or not isinstance(error, _LASTING):
        return 1
    cause = error.__cause__
    may_pass = isinstance(cause, OSError) and cause.errno not in _MISTAKES
    return 1 if may_pass else 2
