"""What a step starts from: the rows of the embedding, and what the tokens' positions do to queries and keys.

    embed(input_ids [T] int64, sources [T] int32, previous [R] int64, positions [T] int64, embedding [V, H],
          rotations [L, P/2] complex64, query_scales [L])
      -> x [T, H], rotation [T, P/2] complex64, query_scale [T]

A token whose source is s >= 0 is previous[s], the token that the step before gave to row s and that no host has seen
yet; else it is its input id. Ids of both lie in 0 .. V - 1, positions in 0 .. L - 1. rotations and query_scales are the
terms of every position (kernels/rope), made once: rows are copied, so that all steps have the same bits.

CUDA graph: safe, nothing is read on the host. The Triton form is launched without dependent launch, so that whatever
it reads, and what kernels after it read before they wait for their inputs, was written by then.
"""

from sparkstral.kernels.embed.reference import embed

__all__ = ["embed"]
