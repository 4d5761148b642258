"""`torch.distributed` with gloo as one member of a measured all-reduce (see `_member`)."""

from __future__ import annotations

import os
import socket
import time

import torch
import torch.distributed as dist

from tests.benchmarks._member import Channel, Checker, Usage, sleep_until, vector_of


def main() -> None:
    channel = Channel()
    assignment = channel.assignment
    torch.set_num_threads(1)
    vector = vector_of(assignment.rank, assignment.num_elements)
    with socket.create_server((assignment.host, 0)) as free:
        port = free.getsockname()[1]
    channel.say(address=f"{assignment.host}:{port}")
    addresses = (channel.hear() or {})["addresses"]
    os.environ["GLOO_SOCKET_IFNAME"] = assignment.interface
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://{addresses[0]}",
        rank=assignment.rank,
        world_size=assignment.num_members,
    )
    checker = Checker(assignment)
    channel.say()
    while channel.hear() is not None:
        tensor = torch.from_numpy(vector.copy())
        channel.say()
        start_seconds = (channel.hear() or {})["start_seconds"]
        usage = Usage()
        sleep_until(start_seconds)
        dist.all_reduce(tensor)
        tensor /= assignment.num_members
        channel.say(finished_seconds=time.monotonic(), **usage.so_far())
        channel.hear()
        channel.say(**checker.check(tensor.numpy()))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
