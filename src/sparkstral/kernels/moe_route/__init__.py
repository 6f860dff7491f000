"""Which experts a token uses, and with what weights.

    moe_route(logits [T, E] float32, top_k, scaling) -> (weights [T, top_k] float32, ids [T, top_k] int64)

Softmax over all E in float32; the top_k largest probabilities in falling order, of equal ones the lower id
first (the model's makers do not say; a rule makes answers repeatable); then weights / (their sum + 1e-20),
times scaling.

Fast form, `triton_kernel`: starts from the normalised x [T, H] and the router [E, H], both bfloat16, so that the
logits (float32 sums of exact products) never leave the device, adds the shared expert as id E with weight 1, and
leaves the (token, expert) pairs sorted for the experts' kernels: work items of up to four pairs of one expert for few
tokens (with x once more as scaled float16), a list by expert and token for many. NaN in a token's logits counts as
probability 0, so that its ids stay valid; its x carries the NaN on.

Tolerance of the fast form: 2e-6 in weights; ids equal where neighbours in the order differ by more than that. Few
tokens: a token's numbers have the same bits in every batch. CUDA graph: safe, nothing is read on the host, and the
counter of finished programs is 0 again when a launch ends. Source: docs/model.md, one decoder layer.
"""

from sparkstral.kernels.moe_route.reference import moe_route

__all__ = ["moe_route"]
