"""The process that cuts a later part of the corpus takes what training leaves of the processor."""

from __future__ import annotations

import random
from pathlib import Path

import psutil
import trio

from gossamer.node.network.identity import Identity
from gossamer.node.runs.founding.preparing import PartTask, cut_elsewhere, prepare_elsewhere
from gossamer.node.runs.planning.draft import draft_of_preset, manifest_of
from gossamer.protocol.ids import digest_of
from gossamer.protocol.limits import KIB, MIB
from gossamer.trainer.text.sources.corpus import no_progress

DRAFT = draft_of_preset("tiny")
FOUNDER = Identity.from_seed(digest_of(b"founder"))
PATIENCE_SECONDS = 60.0


def test_the_process_that_cuts_a_later_part_has_a_low_priority(tmp_path: Path) -> None:
    corpus, draw = tmp_path / "corpus", random.Random(1)
    corpus.mkdir()
    for number in range(4):
        lines = (f"{number} {n} " + "w" * draw.randrange(250) for n in range(1_000))
        (corpus / f"{number}.txt").write_text("\n".join(lines) + "\n")
    root, folder = tmp_path / "state", tmp_path / "part"
    root.mkdir()
    folder.mkdir()
    mine = psutil.Process()
    others: set[psutil.Process] = set()
    values: list[int] = []

    def note_niceness(_stage: str, _done: int, _total: int) -> None:
        # The process is there, if only as one that nobody has waited for yet.
        (child,) = set(mine.children()) - others
        values.append(child.nice())

    async def main() -> None:
        with trio.fail_after(PATIENCE_SECONDS):
            data = await prepare_elsewhere(
                DRAFT, [corpus], root / "blocks", 64 * MIB, no_progress, start_bytes=128 * KIB
            )
            manifest = manifest_of(
                DRAFT,
                founder=FOUNDER.peer_id,
                created_unix_seconds=0,
                data=data.config,
                genesis_digest=digest_of(b"genesis"),
            )
            others.update(mine.children())
            task = PartTask(str(root), 1, manifest, b"", str(folder))
            await cut_elsewhere(task, note_niceness)

    trio.run(main)
    assert values
    assert min(values) >= min(19, mine.nice() + 10)  # 19 is the least priority of all
