"""Root-mean-square norm: y = weight · round(x · rsqrt(mean(x²) + eps)).

    rms_norm(x [..., D] any float dtype, weight [D] of x's dtype, eps) -> [..., D] of x's dtype

x may be a strided view with a contiguous last dimension. Mean and reciprocal root are float32; the normalised
value is rounded to x's dtype before the plain weight (no 1 + weight) multiplies it, as transformers does.

Tolerance of a fast kernel: one unit in the last place of x's dtype, as only the order of the sum may differ.
CUDA graph: safe, nothing is read on the host.
"""

from sparkstral.kernels.rms_norm.reference import rms_norm

__all__ = ["rms_norm"]
