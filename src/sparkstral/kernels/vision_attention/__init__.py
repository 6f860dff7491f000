"""Attention among the patches of each of many images, with 2-D rotary positions: block-diagonal, in both directions.

    axial_rotation(heights_and_widths, theta, device)                -> [T, 32] complex64: cos + i·sin
    vision_attention(qkv [T, 3, N, 64], rotation [T, 32], cu_seqlens) -> [T, N * 64]

T patches of all images, one image after the other, each row by row; image i has rows cu_seqlens[i] to
cu_seqlens[i + 1]. Query and key are turned first: pair j is the lanes (2j, 2j + 1); pairs 0 to 15 turn by the patch's
row times f_{2j}, pairs 16 to 31 by its column times f_{2(j - 16) + 1}, with f_k = theta^(-2k/64). The rotation is
computed in float32 and rounded to qkv's dtype. Every patch sees every patch of its own image and no other; softmax
over q·k·64^-0.5 in float32.

An image's result does not depend on the batch that it is in, to the bit.
The Triton form turns queries and keys in place, so qkv is used up; its tiles are planned once for a batch, the same in
all layers:

    plan_tiles(cu_seqlens, config, device) -> tiles
    vision_attention(qkv, rotation, tiles, config=) -> [T, N * 64]

Tolerance of the fast kernel: bfloat16's, as weights are rounded to it before they meet the values.
CUDA graph: not meant for one; nothing is read on the host. Source: docs/model.md 2.4.
"""

from sparkstral.kernels.vision_attention.reference import axial_rotation, vision_attention

__all__ = ["axial_rotation", "vision_attention"]
