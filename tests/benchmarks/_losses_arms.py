"""The arms of `losses.py` by name: what a name says, and which names belong to which question."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

Kind = Literal["sync", "alone", "diloco", "sparse", "distro"]
Peers = Literal["constant", "grow", "shrink"]


@dataclass(frozen=True)
class Arm:
    """One way to train, as its name says."""

    name: str
    kind: Kind
    num_peers: int = 1
    """Largest number of peers: a swarm that grows ends with it, one that shrinks begins with it."""
    inner_steps: int = 20
    """Inner steps of a round (H), after the warm-up."""
    codec: str = "fp32"
    overlap: float = 0.0
    """The new state arrives after this part of the next round's inner steps; 0: at once."""
    overlap_warmup: bool = False
    """Whether the rounds of the warm-up overlap too."""
    fragments: int = 1
    mixing: float = 0.0
    """Streaming DiLoCo's alpha."""
    topics: bool = False
    """Each peer has text of its own kind, instead of all having the same mixture."""
    cold: bool = False
    """Whether the arm begins without the warm-up rounds."""
    is_uneven: bool = False
    """Whether each peer is twice as fast as the one before it."""
    peers: Peers = "constant"
    rates: tuple[float, float] | None = None
    """Outer learning rate and momentum; None: the preset's."""
    displacement: float = 0.0
    """Each round chooses the momentum that leads so far (`outer_tuning`); 0: constant."""
    top_k: int = 0
    """Values that are kept of a block or chunk; 0: the mode's default."""
    error_decay: float | None = None
    """Part of the unsent work that is carried (`sparse` only); None: the preset's."""
    dense_warmup: bool = False
    """Whether the rounds of the warm-up send everything, with `codec` (`sparse` only)."""
    set_members: int | None = None
    """Most members of a set; more are a sum (`sparse` only). None: there are sets only."""
    decay: float | None = None
    """Decay of the momentum (`distro` only); None: the mode's default."""
    learning_rate: float = 0.0
    """Learning rate of the inner steps; 0 is the mode's default."""
    cooldown: float = 0.0
    """WSD: the learning rate stays, and falls in this last part of the steps; 0: cosine."""
    muon: bool = False
    """Whether the hidden matrices are Muon's, instead of AdamW's like all else."""
    lookahead: bool = False
    """Whether gradients are taken where the own momentum would lead (`distro` only)."""

    def num_peers_at(self, progress: float) -> int:
        """Peers that train when this part (0 to 1) of the inner steps is done."""
        if self.peers == "constant":
            return self.num_peers
        stage = min(int(progress * self.num_peers), self.num_peers - 1)
        return stage + 1 if self.peers == "grow" else self.num_peers - stage

    def steps_of(self, steps: int, num_peers: int) -> list[int]:
        """Inner steps of each of so many peers in a round, `steps` on average."""
        if not self.is_uneven:
            return [steps] * num_peers
        total, parts = steps * num_peers, 2**num_peers - 1
        done = [round(total * (2**peer - 1) / parts) for peer in range(num_peers + 1)]
        return [after - before for before, after in pairwise(done)]


def arm_of(name: str) -> Arm:
    """The arm of a name such as `diloco-4-h20-int8-o50-f4-topics-cold-0.7/0.9`.

    Raises:
        ValueError: no such arm.
    """
    kind, *parts = name.split("-")
    if kind not in ("sync", "alone", "diloco", "sparse", "distro"):
        raise ValueError(f"no arm begins with {kind!r}")
    arm = Arm(name, kind)  # type: ignore[arg-type]
    for part in parts:
        for pattern, change in _PARTS:
            if match := re.fullmatch(pattern, part):
                arm = change(arm, match)
                break
        else:
            raise ValueError(f"{part!r} in {name!r} means nothing")
    return arm


_Change = Callable[[Arm, re.Match[str]], Arm]
_PARTS: tuple[tuple[str, _Change], ...] = (
    (r"(\d+)", lambda arm, found: replace(arm, num_peers=int(found[1]))),
    (r"h(\d+)", lambda arm, found: replace(arm, inner_steps=int(found[1]))),
    (r"(fp32|fp16|int8|int4)", lambda arm, found: replace(arm, codec=found[1])),
    (
        r"o(\d+)(w?)",
        lambda arm, found: replace(arm, overlap=int(found[1]) / 100, overlap_warmup=bool(found[2])),
    ),
    (r"f(\d+)", lambda arm, found: replace(arm, fragments=int(found[1]))),
    (r"a([\d.]+)", lambda arm, found: replace(arm, mixing=float(found[1]))),
    (r"k(\d+)", lambda arm, found: replace(arm, top_k=int(found[1]))),
    (r"e([\d.]+)", lambda arm, found: replace(arm, error_decay=float(found[1]))),
    (r"s(\d+)", lambda arm, found: replace(arm, set_members=int(found[1]))),
    (r"b([\d.]+)", lambda arm, found: replace(arm, decay=float(found[1]))),
    (r"dense", lambda arm, _: replace(arm, dense_warmup=True)),
    (r"lr([\d.]+)", lambda arm, found: replace(arm, learning_rate=float(found[1]))),
    (r"wsd(\d+)", lambda arm, found: replace(arm, cooldown=int(found[1]) / 100)),
    (r"muon", lambda arm, _: replace(arm, muon=True)),
    (r"topics", lambda arm, _: replace(arm, topics=True)),
    (r"uneven", lambda arm, _: replace(arm, is_uneven=True)),
    (r"cold", lambda arm, _: replace(arm, cold=True)),
    (r"d([\d.]+)", lambda arm, found: replace(arm, displacement=float(found[1]))),
    (r"look", lambda arm, _: replace(arm, lookahead=True)),
    (r"grow", lambda arm, _: replace(arm, peers="grow")),
    (r"shrink", lambda arm, _: replace(arm, peers="shrink")),
    (
        r"([\d.]+)/([\d.]+)",
        lambda arm, found: replace(arm, rates=(float(found[1]), float(found[2]))),
    ),
)

CODECS = ("fp32", "fp16", "int8", "int4")

GROUPS: dict[str, tuple[str, ...]] = {
    "codecs": ("sync-4", "alone", *(f"diloco-4-h20-{codec}" for codec in CODECS)),
    "overlap": (
        *(f"diloco-4-h20-fp16-o{late}" for late in (10, 20, 50)),
        *("diloco-4-h20-int8-o10", "diloco-4-h20-int4-o10"),
        *(f"diloco-4-h20-fp16-f4{late}" for late in ("", "-o10", "-o50", "-o100")),
        *("diloco-4-h20-int4-f4-o10", "diloco-4-h20-int4-f4-o50"),
    ),
    "sparse": ("sparse-4-h20", "sparse-4-h20-o10"),
    "distro": ("distro-4", "distro-4-uneven"),
    "sizes": (
        *("sync-2", "diloco-2-h20-fp32", "diloco-2-h20-int4", "sparse-2-h20"),
        *("sync-8", "diloco-8-h20-fp32", "diloco-8-h20-int4", "sparse-8-h20"),
    ),
    "h50": ("diloco-4-h50-fp32", "diloco-4-h50-int4"),
    "muon": (
        "diloco-4-h20-fp32",
        *(f"diloco-4-h20-fp32-lr{rate}" for rate in ("0.006", "0.008")),
        *(f"diloco-4-h20-fp32-muon-lr{rate}" for rate in ("0.006", "0.01")),
        *("diloco-4-h50-fp32-lr0.006", "diloco-4-h50-fp32-muon-lr0.006"),
        "diloco-4-h20-int4-muon-lr0.006",
        *("sparse-4-h20-lr0.006", "sparse-4-h20-muon-lr0.006"),
    ),
    "schedules": tuple(
        f"diloco-4-h20-fp32{schedule}" for schedule in ("", "-wsd10", "-wsd20", "-wsd40")
    ),
    "topics": ("diloco-4-h20-fp16-topics", "diloco-8-h20-fp16-topics"),
    "speeds": tuple(
        f"diloco-4-h20-fp16-uneven{more}" for more in ("", "-topics", "-muon", "-topics-muon")
    ),
    "peers": ("diloco-8-h20-fp16-grow", "diloco-8-h20-fp16-shrink"),
    "tuning": tuple(
        f"diloco-4-h{steps}-fp32{start}{rates}"
        for steps in (5, 20, 50, 200)
        for start in ("", "-cold")
        for rates in ("-d1.4", "-1.0/0.0", "-1.0/0.5", "-1.0/0.8", "-0.7/0.9")
    ),
}
"""Names for `--arms` that stand for several arms."""
