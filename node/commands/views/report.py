"""`gossamer report`."""

from __future__ import annotations

import io
import time
from pathlib import Path

import msgspec

from gossamer.node.base.disk_health import write_atomically
from gossamer.node.base.settings.settings import ConfigError, Settings
from gossamer.node.base.terminal.printable import printable
from gossamer.node.commands.options import NO_OPTIONS, State, reading_settings_of
from gossamer.node.commands.views.peers import names_of, status_here, write_csv
from gossamer.node.runs.results.credit import Credits, read_credits
from gossamer.node.runs.results.generating import Sampling, pieces, require_allowed
from gossamer.node.runs.results.reading import read_state
from gossamer.node.runs.results.report import MARK, Sample, page
from gossamer.node.storage.owner_files import LossFile, SamplesFile
from gossamer.node.storage.state_dir import StateDir

SAMPLES_MAX = 16
"""Texts on a page: each starts a process with the model."""

SAMPLE = Sampling(tokens=120, temperature=0.8, seed=0, device="cpu")
"""How the samples are drawn: as `gossamer generate` does by default."""


def report(
    folder: Path, *, sample: tuple[str, ...] = (), force: bool = False, options: State = NO_OPTIONS
) -> int:
    """Write a static page of the run: curve, members, samples.

    The folder gets index.html, which loads nothing, and members.csv. They name the members by their
    peer ids, and the page also by the names that they show. They show no address. The curve is that
    of this node, and so are the samples that it took (sample_prompts). The node may run meanwhile.

    Parameters
    ----------
    folder
        Folder to write to; it is created if it does not exist.
    sample
        Text that the model continues for the page; repeatable, up to 16 times.
    force
        Write over an index.html or a members.csv that this command did not write.
    """
    settings = reading_settings_of(options)
    if len(sample) > SAMPLES_MAX:
        raise ConfigError([f"--sample is given {len(sample)} times; allowed: up to {SAMPLES_MAX}"])
    for prompt in sample:
        require_allowed(prompt, SAMPLE)
    file, table = folder / "index.html", folder / "members.csv"
    if folder.exists() and not folder.is_dir():
        raise ConfigError([f"{printable(str(folder))} is no folder: name another one"])
    if not force:
        _require_own(file, table)
    state_dir = StateDir(settings.state_dir)
    credits = read_credits(state_dir)
    run_id = credits.manifest.run_id
    history, _ = LossFile(state_dir.losses_path, run_id).load()
    samples = _samples(settings, sample) if sample else []
    kept = SamplesFile(state_dir.samples_path, run_id).load()
    names = names_of(state_dir, run_id, status_here(state_dir))
    text = page(credits, history.points(), samples, time.time(), names, kept)
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(file, text.encode(), mode=0o644)
    write_atomically(table, _csv(credits), mode=0o644)
    print(f"{printable(str(file))} is written: round {credits.round:,}")
    return 0


def _require_own(page_file: Path, table: Path) -> None:
    """Raises ConfigError where files of somebody else would be lost. A table has no mark of its
    own: beside a page of this command it is this command's."""
    is_own = page_file.exists() and MARK in page_file.read_text("utf-8", errors="replace")
    for file in (page_file, table):
        if file.exists() and not is_own:
            raise ConfigError(
                [f"{file} was not written by this command: name another folder, or give --force"]
            )


def _samples(settings: Settings, prompts: tuple[str, ...]) -> list[Sample]:
    state = read_state(settings)
    return [
        Sample(
            prompt,
            "".join(pieces(settings, state, prompt, msgspec.structs.replace(SAMPLE, seed=number))),
        )
        for number, prompt in enumerate(prompts)
    ]


def _csv(credits: Credits) -> bytes:
    text = io.StringIO()
    write_csv(credits.rows, text, with_you=False)  # the page is for everybody
    return text.getvalue().encode()
