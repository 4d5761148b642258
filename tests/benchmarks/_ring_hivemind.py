"""hivemind's averaging as one member of a measured all-reduce (see `_member`).

Runs in a virtual environment of its own. Matchmaking is done before the clock starts, so only the
all-reduce is measured.
"""

from __future__ import annotations

import time

import torch
from hivemind import DHT, DecentralizedAverager
from hivemind.averaging.control import AveragingStage
from hivemind.compression import Float16Compression, NoCompression

from tests.benchmarks._member import Channel, Checker, Usage, sleep_until, vector_of

MATCHMAKING_SECONDS = 60.0
ALLREDUCE_SECONDS = 300.0


def main() -> None:
    channel = Channel()
    assignment = channel.assignment
    torch.set_num_threads(1)
    vector = vector_of(assignment.rank, assignment.num_elements)
    listen = [f"/ip4/{assignment.host}/tcp/0"]
    # The others begin their tables with the first one's address.
    own = DHT(start=True, host_maddrs=listen)
    channel.say(address=str(own.get_visible_maddrs()[0]))
    addresses = (channel.hear() or {})["addresses"]
    if assignment.rank:
        own.shutdown()
        own = DHT(start=True, host_maddrs=listen, initial_peers=addresses[:1])
    averager = DecentralizedAverager(
        [torch.from_numpy(vector.copy())],
        own,
        start=True,
        prefix="ring",
        target_group_size=assignment.num_members,
        min_group_size=assignment.num_members,
        min_matchmaking_time=3.0,
        request_timeout=2.0,
        compression=Float16Compression() if assignment.codec == "fp16" else NoCompression(),
    )
    checker = Checker(assignment)
    channel.say()
    while channel.hear() is not None:
        with averager.get_tensors() as tensors:
            tensors[0].copy_(torch.from_numpy(vector))
        control = averager.step(wait=False, require_trigger=True, timeout=ALLREDUCE_SECONDS)
        deadline = time.monotonic() + MATCHMAKING_SECONDS
        while control.stage is not AveragingStage.AWAITING_TRIGGER:
            if control.done() or time.monotonic() > deadline:
                raise SystemExit(f"no group was formed: {control.stage}")
            time.sleep(0.05)
        channel.say()
        start_seconds = (channel.hear() or {})["start_seconds"]
        usage = Usage()
        sleep_until(start_seconds)
        control.allow_allreduce()
        control.result()
        channel.say(finished_seconds=time.monotonic(), **usage.so_far())
        channel.hear()
        with averager.get_tensors() as tensors:
            channel.say(**checker.check(tensors[0].numpy()))
    averager.shutdown()
    own.shutdown()


if __name__ == "__main__":
    main()
