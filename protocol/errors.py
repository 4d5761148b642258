"""Errors of the protocol: faults of another peer, and faults of this program.

Decoding or checking bytes from the network raises `RemoteProtocolError` (and its kinds) and nothing
else; the code that catches it blames the sender. `LocalProtocolError` is a bug in this program: an
event that the state machine does not allow. It leaves the machine as it was.
"""

from __future__ import annotations


class LocalProtocolError(Exception):
    """A state machine was called in a way that its rules do not allow: a bug in this program."""


class RemoteProtocolError(Exception):
    """A peer sent something that the protocol does not allow.

    `reason` is a short fixed word for counters (`offences_total{reason}`).
    """

    reason = "protocol"


class MalformedError(RemoteProtocolError):
    """Bytes that cannot be decoded, or values outside their range."""

    reason = "malformed"


class OversizedError(RemoteProtocolError):
    """A frame, list or text over its named limit."""

    reason = "oversized"


class ForgedError(RemoteProtocolError):
    """A signature or digest that does not fit."""

    reason = "forged"


class VersionError(RemoteProtocolError):
    """A protocol version or codec that this node does not know."""

    reason = "version"


class ImplausibleError(RemoteProtocolError):
    """A claim that no peer can reach by training under the run's manifest."""

    reason = "implausible"


class FloodError(RemoteProtocolError):
    """More messages than any peer has to send, or more requests than it may make at once."""

    reason = "flood"


class UnprovenError(RemoteProtocolError):
    """A head that its holder has no commit records for, or that no peer can reach."""

    reason = "unproven"


class EquivocationError(RemoteProtocolError):
    """Two statements of one peer that contradict each other, both signed."""

    reason = "equivocation"


class ReplacedSumError(RemoteProtocolError):
    """A member has passed on another sum than its part makes of the sum that came to it."""

    reason = "replaced"


class ClaimedPartError(RemoteProtocolError):
    """A partial sum that claims to hold the receiver's part, which never left it. Its sender may
    have the sum from another member that made it up, and cannot tell."""

    reason = "claimed"


class ManifestError(ValueError):
    """A manifest that cannot be used; `problems` holds one sentence for each mistake, for
    people."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems
