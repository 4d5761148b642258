"""Every bound of the protocol, with its reason. Nothing is read from the network past one."""

from __future__ import annotations

KIB = 1024
MIB = 1024 * KIB

PROTOCOL_VERSION = 4

# So many members have to fit a ring of signed records (`trust = "open"`): a chunk is one block with
# a record of each. With fewer the ring would leave out members of a run of common size.
OPEN_MEMBERS_MIN = 31

# One peer's ring position is one bit of a chunk's contributor mask, and a roster carries a signed
# Ready (some 400 bytes) a member in one gossip message: 256 members stay far below 1 MiB.
RING_MEMBERS_MAX = 256

# By so many bytes of a digest a `Ready` names a peer that its author is connected to. By accident
# two of 256 peers share them in one of 100,000 swarms; a pair that is not linked then counts as
# linked. Links beyond those to a full ring change no order.
LINK_BYTES = 4
LINKS_BYTES_MAX = LINK_BYTES * RING_MEMBERS_MAX

# Gossipsub drops messages over 1 MiB without an error; this leaves room for its own envelope.
GOSSIP_BYTES_MAX = 512 * KIB

# A frame's message part (everything but the bulk bytes): a roster of 256 members is the largest.
FRAME_MESSAGE_BYTES_MAX = 512 * KIB

# A frame's bulk part: one block. The largest block is a chunk of 2**20 fp32 elements (4 MiB).
BLOCK_BYTES_MAX = 4 * MIB

# Chunks cut the flat parameters; small enough to pipeline, large enough that a frame's fixed cost
# (about 0.3 ms of Python) is small beside its bytes.
CHUNK_ELEMENTS_MIN = 1024
CHUNK_ELEMENTS_DEFAULT_MAX = 256 * KIB  # 1 MiB of fp32
CHUNK_ELEMENTS_MAX = BLOCK_BYTES_MAX // 4
# A digest (32 bytes) a chunk, for parameters and momentum, must fit one index block.
CHUNKS_MAX = 32 * KIB

# Longest side of a tile of the discrete cosine transform, DeMo's s (arXiv 2411.19870): a tile has
# at most 4096 coefficients, whose index has 12 bits.
TILE_SIDE_MAX = 64

# Of a model: twice as many layers as Llama 3.1 with 405 billion parameters has.
LAYERS_MAX = 256

# Data: a shard is a block. The index is part of the manifest's blocks, and is one itself: 45 bytes
# a shard, its digest and two lengths. With the largest shards these hold 1.9e11 tokens of two
# bytes, more than the preset `1.1b` plans.
SHARD_TOKENS_MAX = 16 * MIB
SHARDS_MAX = 90 * KIB
# One peer's consumed spans in one round: one of each partition that it holds.
SPANS_MAX = 256
# Partitions that a peer holds for itself, 3 to 5 bytes each in its announcement: sixteen a round,
# or all of a small corpus (`work/partitions.py`).
CLAIMS_MAX = 256

# Manifest with its tokenizer and data index travels as one block.
MANIFEST_BYTES_MAX = BLOCK_BYTES_MAX

ADDRESSES_MAX = 16
ADDRESS_CHARACTERS_MAX = 256
TEXT_CHARACTERS_MAX = 256

NAME_CHARACTERS_MAX = 32
"""Length of a peer's display name: longer ones do not fit into a table of peers."""

# Bounds on numbers that peers say of themselves. 2**48 tokens a round is beyond any machine.
TOKENS_MAX = 2**48
# Of a pseudo-gradient: its square, and the sum of two such, are finite in float64.
NORM_MAX = 1e150
# A loss of which is said: a model that diverges has a larger one, and its node says this one.
LOSS_MAX = 1e9
# Tokens of a whole chain.
TOKENS_TOTAL_MAX = TOKENS_MAX * RING_MEMBERS_MAX
ROUNDS_MAX = 2**31
# Extensions in the life of a run: a founder that moves its end more often should found a new run.
EXTENSIONS_MAX = 1024
# Parts that a founder adds to the data of a run: their list, some 45 bytes each, is a small block.
DATA_PARTS_MAX = 1024
# Lives of a node are numbered by its clock's nanoseconds, and its announcements one by one.
INCARNATION_MAX = SEQUENCE_MAX = 2**63

# Bounds on what a node keeps of others: members of one run, and rosters.
MEMBERS_MAX = 1024
ROSTERS_KEPT_MAX = 64
# Organisers that may be tried for one head before the count starts to look like an attack.
ATTEMPTS_MAX = 1000

# Statements of one member on its link rate, in one ring: the rate changed by a factor of two each
# time.
LINK_RATES_MAX = 64

# Peers that take rounds back together: each signs each proposal, and every node keeps all of it.
KEEPERS_MAX = 16

# Commit records in one reply of the chain protocol, of some 200 bytes a member.
HEADERS_PER_REPLY_MAX = 64
