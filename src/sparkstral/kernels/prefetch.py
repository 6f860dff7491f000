"""Weights on their way to the L2 cache while a kernel still waits for its inputs, or is too small to use the bus.

A prefetch returns nothing and changes nothing: what is asked for may be written meanwhile, as L2 is where all SMs
see memory alike. Only the addresses must exist. Source: PTX ISA, cp.async.bulk.prefetch; SM 9.0 and newer.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def prefetch_pieces(at, num_bytes):
    """`at`: int64 addresses; num_bytes: int32, how many are wanted from each on, or 0; both multiples of 16. Vectors
    shorter than the program has threads would be asked for several times."""
    tl.inline_asm_elementwise(
        "{.reg .pred p; setp.ne.b32 p, $2, 0; @p cp.async.bulk.prefetch.L2.global [$1], $2; mov.u32 $0, 0;}",
        "=r,l,r", [at, num_bytes], dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit
def prefetch(ptr, NUM_BYTES: tl.constexpr, PIECE: tl.constexpr, THREADS: tl.constexpr):
    """NUM_BYTES from a pointer on, a multiple of PIECE bytes, in requests of PIECE each by a program of THREADS."""
    tl.static_assert(NUM_BYTES % PIECE == 0 and PIECE % 16 == 0)
    num_pieces: tl.constexpr = NUM_BYTES // PIECE
    size: tl.constexpr = triton.next_power_of_2(num_pieces)
    piece = tl.arange(0, max(THREADS, size))
    prefetch_pieces(ptr.to(tl.int64) + piece * PIECE, tl.where(piece < num_pieces, PIECE, 0))
