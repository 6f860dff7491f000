"""The next token of each row: constraints, filters, one draw.

    sample(logits [R, V] float32, temperature [R] float32, top_k [R] int32, top_p [R] float64, min_p [R] float32,
           uniform [R] float64, bitmask [B, ceil(V / 32)] int32, mask_rows [R] int32)
      -> token_ids [R] int64, status [R] int32

A row whose mask_rows is b >= 0 may only say the tokens whose bit v % 32 of word v // 32 of bitmask[b] is set; -1 is
free. temperature 0 takes the largest logit, the lowest id among equals. Otherwise each token's weight is
floor(2^40 · exp((logit - largest) / temperature)), an integer, and 0 below min_p of the largest; then only the top_k
heaviest stay (0: all), of these the fewest that hold top_p of their sum (1: all), the lowest ids among equals; the
token is the first whose running sum, by id, exceeds floor(uniform · total), uniform being in [0, 1).

Status: OK, NOT_FINITE (the row holds a NaN or an infinity), NOTHING_ALLOWED; the token of the latter two means
nothing. logits are not changed. Integer sums do not depend on their order: a row's result depends on nothing but its
own logits and parameters, in any batch, to the bit.

Tolerance of a fast kernel: exp and the division may differ from PyTorch's by some units in the last place of float32,
a millionth of a weight; a token changes only if a boundary falls there. CUDA graph: the Triton form is safe; the
reference is not, it looks which rows draw.
"""

from sparkstral.kernels.sampling.reference import NOT_FINITE, NOTHING_ALLOWED, OK, sample

__all__ = ["NOTHING_ALLOWED", "NOT_FINITE", "OK", "sample"]
