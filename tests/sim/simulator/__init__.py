"""Whole swarms of the protocol's machines on a heap clock, without trio, decided by one seed.

`scenario` draws what a seed decides, `world` runs it. Everything else stands in for a part of the
node: `peer` for its process, `network` and `links` for the transport, `heads` for chain and
catching up, `turn` and `driver` for the loop and a round, `work` for what it trained. `faults`
breaks things and `checks` looks on.
"""
