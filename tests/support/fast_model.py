"""The fast model in Triton's interpreter: small configurations, and stacks of experts from loaded weights.

In float32, which the interpreter's products are right in. Import it in tests whose conftest sets TRITON_INTERPRET.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from sparkstral.kernels.configs import KernelConfigs
from sparkstral.kernels.nvfp4_linear.triton_kernel import FewProgram
from sparkstral.model.fast_mistral4 import FastLimits
from sparkstral.model.weights import LayerWeights, ModelWeights, Nvfp4Weight, StackedExperts, Weight

LIMITS = FastLimits(max_num_seqs=16, max_positions=1024, prefill_keys=128, prefill_tokens=128, moe_tokens=32)


def small_configs() -> KernelConfigs:
    """The shipped ones of SM 9.0, with fewer programs: the interpreter runs them one after the other."""
    shipped = KernelConfigs.shipped((9, 0), pdl=False)
    decode, program = shipped.decode, FewProgram(64, 4, 4)
    single, several = (replace(tile, rows=16, tokens=16) for tile in (decode.single, decode.several))
    return replace(
        shipped,
        decode=replace(
            decode,
            single=single,
            several=several,
            fp8_tiles=(single, several),
            max_splits=4,
            num_programs=3,
        ),
        prefill=replace(shipped.prefill, queries=16, keys=16),
        moe=replace(
            shipped.moe,
            max_few=16,
            few=replace(shipped.moe.few, down=program, down_tokens=program, token_major_max=2),
        ),
        sampling=replace(shipped.sampling, stretch=128),
        vision=replace(shipped.vision, queries=64, keys=64),
        penalties=replace(shipped.penalties, stretch=128),
        token_logprobs=replace(shipped.token_logprobs, stretch=128),
    )


def with_stacks(weights: ModelWeights) -> ModelWeights:
    """`weights` with the stacks that the fast model reads, copied together where the loader has not made them."""
    return replace(weights, layers=tuple(_with_stack(layer) for layer in weights.layers))


def _with_stack(layer: LayerWeights) -> LayerWeights:
    if layer.stacked is not None:
        return layer
    experts, shared = layer.experts, layer.shared_expert

    def parts(routed: Weight, shared: Weight) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        if not isinstance(routed, Nvfp4Weight) or not isinstance(shared, Nvfp4Weight):
            raise TypeError("only NVFP4 experts can be stacked")
        pairs = (
            (routed.packed, shared.packed),
            (routed.scale.view(torch.uint8), shared.scale.view(torch.uint8)),
            (routed.global_scale, shared.global_scale),
        )
        packed, scale, global_scale = (torch.cat((of_routed, of_shared[None])) for of_routed, of_shared in pairs)
        return packed, scale, global_scale

    gate, up, down = (
        parts(getattr(experts, name), getattr(shared, name)) for name in ("gate", "up", "down")
    )
    gate_up = Nvfp4Weight(
        torch.cat((gate[0], up[0]), dim=1),
        torch.cat((gate[1], up[1]), dim=1).view(torch.float8_e4m3fn),
        torch.stack((gate[2], up[2]), dim=1),
    )
    stacked = StackedExperts(gate_up, Nvfp4Weight(down[0], down[1].view(torch.float8_e4m3fn), down[2]))
    return replace(layer, stacked=stacked)
