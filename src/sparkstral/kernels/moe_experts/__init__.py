"""The routed experts: for each token the weighted sum of its experts' gated MLPs.

    moe_experts(x [T, H], weights [T, k] float32, ids [T, k] int64, gate_up [E, 2I, H], down [E, H, I])
        -> [T, H]

gate_up holds the gate's I rows (w1), then the up's (w3); with e = ids[t, j]:
y_t = Σ_j weights[t, j] · down_e·(silu(gate_e·x_t) ⊙ up_e·x_t). x, gate_up, down and the result share a dtype.
The sum over j is float32, in the order of j, so that a token's result depends on the other tokens only by the
rounding of the matrix product. An expert may have no token, or all of them; T may be 0.

Tolerance of a fast kernel: 2e-2 of the row's largest value in bfloat16, for the rounding of the inner values.
CUDA graph: the reference is not safe, it reads the number of tokens of each expert on the host.
"""

from sparkstral.kernels.moe_experts.reference import moe_experts

__all__ = ["moe_experts"]
