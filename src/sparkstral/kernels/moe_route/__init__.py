"""Which experts a token uses, and with what weights.

    moe_route(logits [T, E] float32, top_k, scaling) -> (weights [T, top_k] float32, ids [T, top_k] int64)

Softmax over all E in float32; the top_k largest probabilities in falling order, of equal ones the lower id
first (the model's makers do not say; a rule makes answers repeatable); then weights / (their sum + 1e-20),
times scaling.

Tolerance of a fast kernel: 1e-6 in weights; ids equal where neighbours in the order differ by more than that.
CUDA graph: safe, nothing is read on the host. Source: docs/model.md, one decoder layer.
"""

from sparkstral.kernels.moe_route.reference import moe_route

__all__ = ["moe_route"]
