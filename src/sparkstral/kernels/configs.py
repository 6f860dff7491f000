"""The shipped configurations of all Triton kernels for one device. Importing this imports Triton."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sparkstral.kernels.bf16_linear import triton_kernel as bf16_linear
from sparkstral.kernels.embed import triton_kernel as embed
from sparkstral.kernels.fp8_linear import triton_kernel as fp8_linear
from sparkstral.kernels.latent_write import triton_kernel as latent_write
from sparkstral.kernels.mla_decode import triton_kernel as mla_decode
from sparkstral.kernels.mla_prefill import triton_kernel as mla_prefill
from sparkstral.kernels.moe_experts import triton_kernel as moe_experts
from sparkstral.kernels.penalties import triton_kernel as penalties
from sparkstral.kernels.rms_norm import triton_kernel as rms_norm
from sparkstral.kernels.rope import triton_kernel as rope
from sparkstral.kernels.sampling import triton_kernel as sampling
from sparkstral.kernels.token_logprobs import triton_kernel as token_logprobs
from sparkstral.kernels.vision_attention import triton_kernel as vision_attention

_FIELDS = {
    "bf16_linear": "linear", "fp8_linear": "linear_fp8", "mla_decode": "decode", "mla_prefill": "prefill",
    "moe_experts": "moe", "vision_attention": "vision",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class KernelConfigs:
    """How each operation is launched, and whether kernels overlap their starts (kernels/grid_dependency)."""

    embed: embed.EmbedConfig
    rms_norm: rms_norm.RmsNormConfig
    linear: bf16_linear.LinearConfig
    linear_fp8: bf16_linear.LinearConfig
    latent_write: latent_write.LatentWriteConfig
    rope: rope.RopeConfig
    decode: mla_decode.DecodeConfig
    prefill: mla_prefill.PrefillConfig
    moe: moe_experts.MoeConfig
    sampling: sampling.SamplingConfig
    penalties: penalties.PenaltiesConfig
    token_logprobs: token_logprobs.TokenLogprobsConfig
    vision: vision_attention.VisionAttentionConfig
    pdl: bool

    @classmethod
    def shipped(cls, capability: tuple[int, int], *, pdl: bool = True) -> KernelConfigs:
        """Those of a CUDA capability; KeyError for one that has none (kernels/select says it in words)."""
        return cls(
            embed=embed.CONFIGS[capability],
            rms_norm=rms_norm.CONFIGS[capability],
            linear=bf16_linear.CONFIGS[capability],
            linear_fp8=fp8_linear.CONFIGS[capability],
            latent_write=latent_write.CONFIGS[capability],
            rope=rope.CONFIGS[capability],
            decode=mla_decode.CONFIGS[capability],
            prefill=mla_prefill.CONFIGS[capability],
            moe=moe_experts.CONFIGS[capability],
            sampling=sampling.CONFIGS[capability],
            penalties=penalties.CONFIGS[capability],
            token_logprobs=token_logprobs.CONFIGS[capability],
            vision=vision_attention.CONFIGS[capability],
            pdl=pdl,
        )

    def tuned(self, choices: Mapping[str, Any]) -> KernelConfigs:
        """With the configurations that tuning chose, by operation (kernels/tuned); one that no model's pass uses has no
        place here."""
        named = {_FIELDS.get(operation, operation): config for operation, config in choices.items()}
        return replace(self, **{name: config for name, config in named.items() if hasattr(self, name)})
