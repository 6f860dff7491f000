"""The independent implementation: transformers' Mistral4ForCausalLM, with weights that make errors visible.

Head sizes are the real ones. Weights are drawn so that scores, router logits and logits have a standard
deviation near 1: with the usual 0.02 attention is an average, every expert weighs the same, and a wrong scale
or pairing hides. Experts are NVFP4, decoded for transformers by compressed-tensors.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import Mistral4Config, Mistral4ForCausalLM

from sparkstral.model.config import ModelConfig
from sparkstral.model.weights import (
    AttentionWeights,
    DenseWeight,
    ExpertWeights,
    LayerWeights,
    ModelWeights,
    Nvfp4Weight,
)
from tests.kernels.compressed import decompress_float32

# Positions from 64 on are scaled (llama-4) and turned by frequencies that YaRN has changed.
CONFIG = ModelConfig(
    hidden_size=256,
    num_hidden_layers=3,
    vocab_size=320,
    num_attention_heads=4,
    q_lora_rank=128,
    n_routed_experts=8,
    moe_intermediate_size=96,
    n_shared_experts=1,
    rms_norm_eps=1e-6,
    rope_theta=10000.0,
    rope_factor=16.0,
    rope_beta_fast=32.0,
    rope_beta_slow=1.0,
    original_max_position_embeddings=64,
    llama_4_scaling_beta=0.1,
    llama_4_original_max_position_embeddings=64,
    max_position_embeddings=1024,
)
_E2M1_RMS = 2.9  # of the sixteen codes, all as likely


@dataclass(frozen=True)
class OracleOutput:
    """What transformers computes for T tokens."""

    hidden_states: tuple[Tensor, ...]  # [T, H] into each layer, and out of the last, before the final norm
    logits: Tensor  # [T, V]
    attentions: tuple[Tensor, ...]  # of each layer [N, T, T]
    router_logits: tuple[Tensor, ...]  # of each layer [T, E]


class Oracle:
    """One random model of `CONFIG` in float32, and the same parameters by our names.

    crowded: every token goes to experts 0 to 3, the others get none.
    """

    def __init__(self, seed: int = 0, crowded: bool = False) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self.model = Mistral4ForCausalLM(_transformers_config()).eval()
        for layer in self.model.model.layers:
            # Releases since July 2026 multiply it by mscale², which the model does not have (docs/model.md).
            layer.self_attn.scaling = 128**-0.5
        for name, parameter in self.model.named_parameters():
            noise = self._randn(*parameter.shape)
            if "norm" in name:
                parameter.data = 1 + 0.2 * noise
            elif "embed_tokens" in name:
                parameter.data = noise
            else:
                parameter.data = noise * parameter.shape[-1] ** -0.5
        if (
            crowded
        ):  # lane 0 of the stream is large for every token, and the router of four experts looks at it
            self.model.model.embed_tokens.weight.data[:, 0] = 30.0
            for layer in self.model.model.layers:
                layer.mlp.gate.weight.data[:, 0] = 0.0
                layer.mlp.gate.weight.data[:4, 0] = 2.0
        self.weights = ModelWeights(
            embed_tokens=self.model.model.embed_tokens.weight.data,
            layers=tuple(self._layer(layer) for layer in self.model.model.layers),
            norm=self.model.model.norm.weight.data,
            lm_head=DenseWeight(self.model.lm_head.weight.data),
        )

    @torch.inference_mode()
    def run(self, token_ids: list[int]) -> OracleOutput:
        streams: list[Tensor] = []
        inner = self.model.model
        hooks = [
            module.register_forward_pre_hook(lambda _, args: streams.append(args[0][0]))
            for module in (*inner.layers, inner.norm)
        ]
        out = self.model(
            torch.tensor([token_ids]), output_attentions=True, output_router_logits=True, use_cache=False
        )
        for hook in hooks:
            hook.remove()
        return OracleOutput(
            hidden_states=tuple(streams),
            logits=out.logits[0],
            attentions=tuple(attention[0] for attention in out.attentions),
            router_logits=tuple(logits.view(len(token_ids), -1) for logits in out.router_logits),
        )

    def _randn(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self._generator)

    def _layer(self, layer: nn.Module) -> LayerWeights:
        attention, mlp = layer.self_attn, layer.mlp
        experts, experts_values = self._experts((CONFIG.n_routed_experts,), CONFIG.moe_intermediate_size)
        mlp.experts.gate_up_proj.data = torch.cat(experts_values[:2], dim=1)
        mlp.experts.down_proj.data = experts_values[2]
        shared, shared_values = self._experts((), CONFIG.moe_intermediate_size * CONFIG.n_shared_experts)
        mlp.shared_experts.gate_proj.weight.data = shared_values[0]
        mlp.shared_experts.up_proj.weight.data = shared_values[1]
        mlp.shared_experts.down_proj.weight.data = shared_values[2]
        return LayerWeights(
            attention_norm=layer.input_layernorm.weight.data,
            attention=AttentionWeights(
                q_a_proj=DenseWeight(attention.q_a_proj.weight.data),
                q_a_norm=attention.q_a_layernorm.weight.data,
                q_b_proj=DenseWeight(attention.q_b_proj.weight.data),
                kv_a_proj=DenseWeight(attention.kv_a_proj_with_mqa.weight.data),
                kv_a_norm=attention.kv_a_layernorm.weight.data,
                kv_b_proj=DenseWeight(attention.kv_b_proj.weight.data),
                o_proj=DenseWeight(attention.o_proj.weight.data),
            ),
            ffn_norm=layer.post_attention_layernorm.weight.data,
            router=mlp.gate.weight.data,
            experts=experts,
            shared_expert=shared,
        )

    def _experts(self, lead: tuple[int, ...], width: int) -> tuple[ExpertWeights, list[Tensor]]:
        """Packed gate, up and down, and their values."""
        hidden = CONFIG.hidden_size
        drawn = [self._nvfp4(*lead, *shape) for shape in ((width, hidden), (width, hidden), (hidden, width))]
        return ExpertWeights(*(weight for weight, _ in drawn)), [values for _, values in drawn]

    def _nvfp4(self, *shape: int) -> tuple[Nvfp4Weight, Tensor]:
        """[..., N, K] with values of standard deviation K^-0.5; the global scale differs between experts."""
        *lead, rows, columns = shape
        packed = torch.randint(
            0, 256, (*lead, rows, columns // 2), dtype=torch.uint8, generator=self._generator
        )
        global_scale = 100 * (1 + torch.rand(lead, generator=self._generator))
        scale = global_scale[..., None, None] * columns**-0.5 / _E2M1_RMS
        scale = (scale * (0.5 + torch.rand(*lead, rows, columns // 16, generator=self._generator))).to(
            torch.float8_e4m3fn
        )
        values = [
            decompress_float32(*parts)
            for parts in zip(
                packed.view(-1, rows, columns // 2),
                scale.view(-1, rows, columns // 16),
                global_scale.view(-1),
                strict=True,
            )
        ]
        return Nvfp4Weight(packed, scale, global_scale), torch.stack(values).view(shape)


def _transformers_config() -> Mistral4Config:
    return Mistral4Config(
        vocab_size=CONFIG.vocab_size,
        hidden_size=CONFIG.hidden_size,
        moe_intermediate_size=CONFIG.moe_intermediate_size,
        num_hidden_layers=CONFIG.num_hidden_layers,
        num_attention_heads=CONFIG.num_attention_heads,
        num_key_value_heads=CONFIG.num_attention_heads,
        n_routed_experts=CONFIG.n_routed_experts,
        q_lora_rank=CONFIG.q_lora_rank,
        max_position_embeddings=CONFIG.max_position_embeddings,
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": CONFIG.rope_theta,
            "factor": CONFIG.rope_factor,
            "original_max_position_embeddings": CONFIG.original_max_position_embeddings,
            "beta_fast": CONFIG.rope_beta_fast,
            "beta_slow": CONFIG.rope_beta_slow,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "llama_4_scaling_beta": CONFIG.llama_4_scaling_beta,
        },
        attn_implementation="eager",
    )
