"""What the owner sees over restarts: names of members, and texts of the model."""

from pathlib import Path

import pytest
import trio

from gossamer.node.base.disk_health import DiskHealth
from gossamer.node.storage import owner_files
from gossamer.node.storage.owner_files import (
    ROUNDS_MAX,
    MemberName,
    MemberNames,
    NamesFile,
    RoundSamples,
    Sample,
    SamplesFile,
    with_newest,
)

RUN = b"r" * 32
DEEP = b"\x81\xa1x" + b"\x91" * 100_000 + b"\xc0"
"""A list in a list, and so on."""
DAMAGED = (b"", b"\xff\xfe", b"\x92\x01\x02", bytes(4 * 1024 * 1024), DEEP)


def samples_of(round_number: int) -> RoundSamples:
    return RoundSamples(round_number, (Sample("Once", f" in round {round_number}"),))


def test_a_long_run_is_seen_from_its_beginning(tmp_path: Path) -> None:
    kept: tuple[RoundSamples, ...] = ()
    for number in range(0, 1000, 10):
        kept = with_newest(kept, samples_of(number))
        assert len(kept) <= ROUNDS_MAX
        assert kept[0].round == 0
        assert kept[-1].round == number
    assert len(kept) > ROUNDS_MAX / 3
    file = SamplesFile(tmp_path / "samples", RUN)
    file.save(kept)
    assert file.load() == kept
    assert SamplesFile(tmp_path / "samples", b"s" * 32).load() == ()


def test_rounds_that_were_taken_back_are_seen_no_more() -> None:
    kept = tuple(samples_of(number) for number in (10, 20, 30))
    assert [each.round for each in with_newest(kept, samples_of(20))] == [10, 20]


@pytest.mark.parametrize("data", DAMAGED)
def test_a_damaged_file_costs_what_is_in_it(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(data)
    assert SamplesFile(path, RUN).load() == ()
    assert NamesFile(path, RUN).load() == {}


def test_names_that_no_peer_could_have_signed_are_not_shown(tmp_path: Path) -> None:
    file = NamesFile(tmp_path / "names", RUN)
    file.save({"a": MemberName("Ada\x1b[2J")})
    assert file.load() == {}


def test_names_stay_until_their_owner_takes_them_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner_files, "NAMES_MAX", 2)
    file = NamesFile(tmp_path / "names", RUN)
    ada, eve, bob = MemberName("Ada", "us"), MemberName("Eve"), MemberName("", "us")

    async def main() -> None:
        names = MemberNames(file, DiskHealth(), trio.to_thread.run_sync)
        await names.note({"a": ada, "nameless": MemberName()})
        await names.note({"b": eve})  # a is away
        assert file.load() == names.kept == {"a": ada, "b": eve}
        names = MemberNames(file, DiskHealth(), trio.to_thread.run_sync)
        await names.load()
        await names.note({"c": bob})
        assert names.kept == {"b": eve, "c": bob}, "the one that was seen first goes"
        await names.note({"b": MemberName()})
        assert file.load() == {"c": bob}

    trio.run(main)
