"""What a node does about its run: found one, join one, or go on with the one it has."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    # A role is made by the commands and read from nothing, so its types are never looked up.
    from gossamer.protocol.manifest import InnerOptimizer

START_BYTES_DEFAULT = 256 * 1024 * 1024
"""Bytes of a large corpus with which a run begins: about a minute of cutting, and tens of millions
of tokens."""

START_BYTES_MIN = 256 * 1024
"""Of less text too little can be held out to compare losses on."""


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """The node founds a run from a manifest file or a preset, on the corpus.

    An empty corpus means the default one.
    """

    manifest_file: Path | None = None
    corpus: tuple[Path, ...] = ()
    preset: str | None = None
    init_from: Path | None = None
    """Folder of a Hugging Face model whose weights and tokenizer the run begins with."""
    optimizer: InnerOptimizer | None = None
    """Inner optimiser instead of the preset's."""
    skip_bad: bool = False
    """Whether files and lines of the corpus that cannot be used are left out."""
    own: bool = False
    """Whether every peer trains on text of its own."""
    heldout: tuple[Path, ...] = ()
    """Text that all peers get, in a run where each trains on its own."""
    messages: bool = False
    """Whether the text is conversations."""
    start_bytes: int | None = START_BYTES_DEFAULT
    """Bytes of the corpus with which the run begins, if there is far more; None: all of it."""


class _OfAMember(msgspec.Struct, frozen=True, kw_only=True):
    """The part that `Join` and `Resume` have in common."""

    addresses: tuple[str, ...] = ()
    corpus: tuple[Path, ...] = ()
    """This peer's own text, in a run where every peer trains on its own."""
    text_field: str = "text"
    """Field of a JSON line, or column of a table, that holds it."""
    skip_bad: bool = False


class Join(_OfAMember, frozen=True, kw_only=True):
    """The node joins the run of the peers at these addresses. A given `run_id` (hex) must match."""

    run_id: str | None = None
    head: str | None = None
    """A head of the run (hex) that the link named."""
    invitation: bytes | None = None
    """An `Invitation` of the protocol, checked by its decoder."""
    asks_owner: bool = False
    """Whether to show what the run will use, and to ask on the terminal before joining."""


class Resume(_OfAMember, frozen=True, kw_only=True):
    """The node goes on with the run in its state directory. It tries `addresses` besides those of
    known peers, and takes a `corpus` instead of what it had."""


Role = Found | Join | Resume
