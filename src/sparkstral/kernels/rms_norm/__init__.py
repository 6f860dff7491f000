"""Root-mean-square norm: y = weight · round(x · rsqrt(mean(x²) + eps)).

    rms_norm(x [..., D] any float dtype, weight [D] of x's dtype, eps) -> [..., D] of x's dtype

x may be a strided view with a contiguous last dimension. Mean and reciprocal root are float32; the normalised
value is rounded to x's dtype before the plain weight (no 1 + weight) multiplies it, as transformers does.

The Triton form adds what the previous block of the layer gave, which may lie in parts (kernels/bf16_linear):

    add_rms_norm(stream [T, D], parts [S, T, D] or None, weight [D], eps, rows=None) -> [T, D] of weight's dtype

stream += round(Σ parts), in place; returns its norm. With rows [L] int64 only those rows are read, and the stream
stays as it was: the last norm, of the rows whose logits are wanted -> [L, D]. One program a row: a row's result
does not depend on the others.

Tolerance of a fast kernel: one unit in the last place of x's dtype, as only the order of the sum may differ.
CUDA graph: safe, nothing is read on the host.
"""

from sparkstral.kernels.rms_norm.reference import rms_norm

__all__ = ["rms_norm"]
