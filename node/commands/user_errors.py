"""The errors that a person can do something about, as lines to print."""

from __future__ import annotations

import errno
import sys
from typing import Protocol, cast

_WITH_PROBLEMS = (
    "gossamer.node.base.settings:ConfigError",
    "gossamer.trainer.text.sources.corpus_errors:CorpusError",
    "gossamer.trainer.pretrained.errors:FolderError",
    "gossamer.protocol.errors:ManifestError",
)
"""Errors that carry a list of sentences, one a mistake. These tables name classes as MODULE:CLASS
and load none of them: an error that was raised has its module loaded, and to load all takes longer
than most commands."""

_WITH_TEXT = (
    "gossamer.node.storage.block_files:BlockError",
    "gossamer.node.app.client:ClientError",
    "gossamer.node.base.disk_health:DiskError",
    "gossamer.trainer.export.hugging_face:ExportError",
    "gossamer.node.runs.generating:GenerateError",
    "gossamer.node.base.default_places:NoHomeError",
    "gossamer.node.network.identity:IdentityError",
    "gossamer.node.runs.inviting:InvitationError",
    "gossamer.node.peers.run_exchange:JoinError",
    "gossamer.node.runs.preparing:PreparingError",
    "gossamer.node.runs.signed_orders:OrderError",
    "gossamer.node.service.managers:ServiceError",
    "gossamer.node.storage.state_dir:StateDirError",
    "gossamer.node.machine.trainer:TrainerFailedError",
    "gossamer.node.network.transport:TransportError",
)

_LASTING = (
    *_WITH_PROBLEMS,
    "gossamer.trainer.export.hugging_face:ExportError",
    "gossamer.node.network.identity:IdentityError",
    "gossamer.node.runs.inviting:InvitationError",
    "gossamer.node.base.default_places:NoHomeError",
    "gossamer.node.peers.run_exchange:NotAdmittedError",
    "gossamer.node.runs.signed_orders:OrderError",
    "gossamer.node.storage.state_dir:StateDirError",
    "gossamer.node.runs.needs:TooLargeError",
    "gossamer.node.peers.run_exchange:WrongRunError",
)
"""Errors that no second try mends. A peer that does not answer, a port that is in use or a full
disk may be different in a while."""

_MISTAKES = (
    errno.EACCES,
    errno.EEXIST,
    errno.EINVAL,
    errno.EISDIR,
    errno.ELOOP,
    errno.ENAMETOOLONG,
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EPERM,
)
"""Errors of the system that a wrong path or missing rights cause. Others are the disk's, which may
be mended."""

_FULL = (errno.ENOSPC, errno.EDQUOT)

_ADVICE = {
    **dict.fromkeys(_FULL, ". Free some space, and give the command again"),
    errno.EROFS: ". Name a place that can be written",
}
"""What to do, where the system's own words do not say it."""

_PASSING = (
    "gossamer.node.runs.inviting:NoAddressError",
    "gossamer.node.storage.state_dir:StateDirInUseError",
)
"""Kinds of these that may pass: an address that is not known yet, and another daemon."""


class _HasProblems(Protocol):
    problems: list[str]


def explain(error: Exception) -> list[str] | None:
    """Returns one line a problem, or None if the error is a bug and its traceback is wanted."""
    if _is_one_of(error, _WITH_PROBLEMS):
        return list(cast(_HasProblems, error).problems)
    if not (isinstance(error, OSError) or _is_one_of(error, _WITH_TEXT)):
        return None
    # Only Python's own OSError: the texts of our subclasses name the file and say what to do.
    if isinstance(error, OSError) and type(error).__module__ == "builtins":
        advice = _ADVICE.get(error.errno or 0, "")
        if error.filename:
            return [f"{error.filename}: {error.strerror}{advice}"]
        if is_of_output(error):
            return [f"the output cannot be written: {error.strerror}{advice}"]
    return [str(error)]


def is_of_output(error: Exception) -> bool:
    """Whether the disk behind the output is full: errors of other files are of kinds of our own."""
    return type(error) is OSError and not error.filename and error.errno in _FULL


def exit_status(error: Exception) -> int:
    """Returns the status with which the program ends: 2 if the same command would fail again until
    somebody changes something, so that a service manager does not start it again."""
    if _is_one_of(error, _PASSING) or not _is_one_of(error, _LASTING):
        return 1
    cause = error.__cause__
    may_pass = isinstance(cause, OSError) and cause.errno not in _MISTAKES
    return 1 if may_pass else 2


def _is_one_of(error: Exception, names: tuple[str, ...]) -> bool:
    pairs = (name.split(":") for name in names)
    loaded = (getattr(sys.modules[module], kind) for module, kind in pairs if module in sys.modules)
    return isinstance(error, tuple(loaded))
