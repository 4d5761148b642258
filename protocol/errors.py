"""Errors of the protocol: what the other side did wrong apart from what we did wrong.

`RemoteProtocolError` (and its kinds) is the only thing that decoding or checking bytes from the
network may raise: whoever catches it blames the sender. `LocalProtocolError` is our own bug: an
event that the state machine does not allow, and it leaves the machine as it was.
"""

from __future__ import annotations


class ProtocolError(Exception):
    """Base of both sides' errors."""


class LocalProtocolError(ProtocolError):
    """We called a state machine in a way that its rules do not allow: a bug here."""


class RemoteProtocolError(ProtocolError):
    """Somebody sent what the protocol does not allow.

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
    """A claim that nobody who trains by the run's manifest can come to."""

    reason = "implausible"


class FloodError(RemoteProtocolError):
    """More than any peer has to say, or than it may ask at once."""

    reason = "flood"


class UnprovenError(RemoteProtocolError):
    """A head that its holder has no commit records for, or that nobody can get to."""

    reason = "unproven"


class ManifestError(ValueError):
    """A manifest that cannot be used; `problems` holds one sentence a mistake, for people."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems
