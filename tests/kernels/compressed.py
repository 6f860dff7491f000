"""The independent decoder of NVFP4: compressed-tensors' own decompression."""

from __future__ import annotations

import torch
from compressed_tensors.compressors.nvfp4 import NVFP4PackedCompressor, unpack_fp4_from_uint8
from compressed_tensors.quantization import preset_name_to_scheme
from compressed_tensors.quantization.lifecycle.forward import dequantize
from torch import Tensor

_SCHEME = preset_name_to_scheme("NVFP4A16", ["Linear"])


def decompress(packed: Tensor, scale: Tensor, global_scale: Tensor) -> Tensor:
    """packed [N, K/2], scale [N, K/16], global_scale [] -> [N, K] bfloat16, as a checkpoint is loaded."""
    state = {"weight_packed": packed, "weight_scale": scale, "weight_global_scale": global_scale.reshape(1)}
    return NVFP4PackedCompressor.decompress(state, _SCHEME)["weight"]


def decompress_float32(packed: Tensor, scale: Tensor, global_scale: Tensor) -> Tensor:
    """The same with nothing rounded to bfloat16 -> [N, K] float32."""
    rows, half_columns = packed.shape
    return dequantize(
        x_q=unpack_fp4_from_uint8(packed, rows, 2 * half_columns, torch.float32),
        scale=scale.float(),
        args=_SCHEME.weights,
        dtype=torch.float32,
        global_scale=global_scale.reshape(1),
    )
