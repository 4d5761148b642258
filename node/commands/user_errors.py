"""The errors that a person can do something about, as lines to print."""

from __future__ import annotations

import errno
import sys
from collections.abc import Mapping

_LASTS: Mapping[str, bool] = {
    "gossamer.node.base.settings.settings:ConfigError": True,
    "gossamer.trainer.text.sources.corpus_errors:CorpusError": True,
    "gossamer.trainer.pretrained.errors:FolderError": True,
    "gossamer.protocol.errors:ManifestError": True,
    "gossamer.node.storage.block_files:BlockError": False,
    "gossamer.node.app.http.client:ClientError": False,
    "gossamer.node.base.disk_health:DiskError": False,
    "gossamer.trainer.export.hugging_face:ExportError": True,
    "gossamer.node.runs.results.generating:GenerateError": False,
    "gossamer.node.base.settings.default_places:NoHomeError": True,
    "gossamer.node.network.identity:IdentityError": True,
    "gossamer.node.runs.governance.inviting:NoAddressError": False,
    "gossamer.node.runs.governance.inviting:InvitationError": True,
    "gossamer.node.peers.members.run_exchange:NotAdmittedError": True,
    "gossamer.node.peers.members.run_exchange:WrongRunError": True,
    "gossamer.node.runs.planning.needs:TooLargeError": True,
    "gossamer.node.peers.members.run_exchange:JoinError": False,
    "gossamer.node.runs.founding.preparing:PreparingError": False,
    "gossamer.node.runs.governance.signed_orders:OrderError": True,
    "gossamer.node.service.managers:ServiceError": False,
    "gossamer.node.storage.state_dir:StateDirInUseError": False,
    "gossamer.node.storage.state_dir:StateDirError": True,
    "gossamer.node.machine.trainer:TrainerFailedError": False,
    "gossamer.node.network.transport:TransportError": False,
}
"""Whether an error is one that no second try mends. A peer that does not answer, a port that is in
use, an address that is not known yet or a full disk may be different in a while.

The names are MODULE:CLASS, a class before its bases, and none of them is loaded for the table: an
error that was raised has its module loaded, and to load all takes longer than most commands."""

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

_WRONG_NAMES = (errno.ELOOP, errno.ENAMETOOLONG)
"""Errors of a path that no second try mends, whatever the command wanted of it. With others a file
may be there, or be readable, in a while: a disk that is not mounted yet."""

_FULL = (errno.ENOSPC, errno.EDQUOT)

_PROCESSES = (
    "The limit of processes is reached (`ulimit -u`, TasksMax= of a service, --pids-limit of a "
    "container): raise it, or end other programs that count for it"
)

_ADVICE = {
    **dict.fromkeys(_FULL, ". Free some space, and give the command again"),
    errno.EROFS: ". Name a place that can be written",
    errno.EAGAIN: f". {_PROCESSES}",
    errno.EFBIG: ". Raise the limit of the size of files (`ulimit -f unlimited`)",
    errno.EMFILE: ". Raise the limit of open files (`ulimit -n 1024`)",
    errno.ENAMETOOLONG: ". Name a shorter path",
    errno.ENOMEM: ". Stop what else uses the memory, or take a smaller model",
}
"""What to do, where the system's own words do not say it."""

_NO_THREAD = "can't start new thread"
"""Python's words, which have no class of their own."""


def explain(error: Exception) -> list[str] | None:
    """Returns one line a problem, or None if the error is a bug and its traceback is wanted."""
    if _lacks_threads(error):
        return [f"the system lets this program start no more threads. {_PROCESSES}"]
    if not isinstance(error, OSError) and _lasts(error) is None:
        return None
    problems: list[str] | None = getattr(error, "problems", None)
    if problems is not None:
        return list(problems)
    # Only Python's own OSError: the texts of our subclasses name the file and say what to do.
    if isinstance(error, OSError) and type(error).__module__ == "builtins":
        advice = _ADVICE.get(error.errno or 0, "")
        if error.filename:
            return [f"{error.filename}: {error.strerror}{advice}"]
        if is_of_output(error):
            return [f"the output cannot be written: {error.strerror}{advice}"]
        if error.strerror:
            return [f"the system refuses: {error.strerror}{advice}"]
    return [str(error)]


def _lacks_threads(error: Exception) -> bool:
    """Returns whether it is the error of a thread that could not be started, or a group of such:
    each task of a node that needs one fails then."""
    if isinstance(error, ExceptionGroup):
        return all(_lacks_threads(each) for each in error.exceptions)
    return isinstance(error, RuntimeError) and str(error) == _NO_THREAD


def is_of_output(error: Exception) -> bool:
    """Whether the disk behind the output is full: errors of other files are of kinds of our own."""
    return type(error) is OSError and not error.filename and error.errno in _FULL


def exit_status(error: Exception) -> int:
    """Returns the status with which the program ends: 2 if the same command would fail again until
    somebody changes something, so that a service manager does not start it again."""
    if isinstance(error, OSError) and error.errno in _WRONG_NAMES:
        return 2
    if not _lasts(error):
        return 1
    cause = error.__cause__
    may_pass = isinstance(cause, OSError) and cause.errno not in _MISTAKES
    return 1 if may_pass else 2


def _lasts(error: Exception) -> bool | None:
    """Returns what `_LASTS` says of an error; None where it does not know its class."""
    for name, lasts in _LASTS.items():
        module, kind = name.split(":")
        if module in sys.modules and isinstance(error, getattr(sys.modules[module], kind)):
            return lasts
    return None
