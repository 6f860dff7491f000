"""The routed experts: for each token the weighted sum of its experts' gated MLPs.

    moe_experts(x [T, H], weights [T, k] float32, ids [T, k] int64, gate_up [E, 2I, H], down [E, H, I])
        -> [T, H]

gate_up holds the gate's I rows (w1), then the up's (w3); with e = ids[t, j]:
y_t = Σ_j weights[t, j] · down_e·(silu(gate_e·x_t) ⊙ up_e·x_t). x, gate_up, down and the result share a dtype.
The sum over j is float32, in the order of j, so that a token's result depends on the other tokens only by the
rounding of the matrix product. An expert may have no token, or all of them; T may be 0.

Fast form, `triton_kernel.moe_block`: the whole block, from the normalised x [T, H] to residual + Σ, on weights that
stay NVFP4 (nvfp4_linear.packing): gate_up [E + 1, 2I, H] with a global scale for each half, down [E + 1, H, I], the
shared expert as the last of the stack. H and I are multiples of 32. Few tokens share each reading of a weight: up to
route.max_vector tokens, four at a time on the ordinary lanes; up to `max_few`, eight at a time on the matrix unit. A
token's result has the same bits in every batch of one of these forms. Above, tiles of a routed expert's tokens run on
tensor cores, the shared expert in PyTorch's product, and two runs of a batch give the same bits. The forms differ by
rounding.

Rounding of the fast form: decoded weights are exact (the global scale multiplies the sums). On the ordinary lanes
inner values are float16 with 11 significant bits and a power of two for each 16, so that none overflows; groups of
eight products are summed in float16, the rest in float32. Elsewhere inner values are bfloat16, sums float32, and of
many tokens each expert's weighted output is bfloat16 too. Its error against float64 is at most twice that of the
reference in bfloat16. Tolerance against the reference: 2e-2 of the row's largest value in bfloat16, for the rounding
of the inner values. A NaN stays in its row.

CUDA graph: the reference is not safe, it reads the number of tokens of each expert on the host; the fast form is, its
grids depend on T alone and its buffers are the workspace's.
"""

from sparkstral.kernels.moe_experts.reference import moe_experts

__all__ = ["moe_experts"]
