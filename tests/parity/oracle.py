"""The independent implementation: transformers' Mistral4ForCausalLM, with weights that make errors visible.

Head sizes are the real ones. Weights are drawn so that scores, router logits and logits have a standard
deviation near 1: with the usual 0.02 attention is an average, every expert weighs the same, and a wrong scale
or pairing hides.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import Mistral4Config, Mistral4ForCausalLM

from sparkstral.model.config import ModelConfig
from sparkstral.model.weights import (
    AttentionWeights,
    DenseWeight,
    ExpertWeights,
    LayerWeights,
    ModelWeights,
)

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


@dataclass(frozen=True)
class OracleOutput:
    hidden_states: tuple[Tensor, ...]  # [T, H] into each layer, and out of the last (before the final norm)
    logits: Tensor  # [T, V]
    score_std: float  # of the attention scores over the keys that a query sees, the mean of all queries


class Oracle:
    """One random model of `CONFIG`, in float32."""

    def __init__(self, seed: int = 0) -> None:
        config = Mistral4Config(
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
        self.model = Mistral4ForCausalLM(config).eval()
        # Releases since July 2026 multiply the scale by mscale², which the model does not have
        # (docs/model.md).
        for layer in self.model.model.layers:
            layer.self_attn.scaling = 128**-0.5
        generator = torch.Generator().manual_seed(seed)
        for name, parameter in self.model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if "norm" in name:
                parameter.data = 1 + 0.2 * noise
            elif "embed_tokens" in name:
                parameter.data = noise
            else:
                parameter.data = noise * parameter.shape[-1] ** -0.5

    @torch.inference_mode()
    def run(self, token_ids: list[int]) -> OracleOutput:
        streams: list[Tensor] = []
        hooks = [
            layer.register_forward_pre_hook(lambda _, args: streams.append(args[0][0]))
            for layer in self.model.model.layers
        ]
        hooks.append(
            self.model.model.norm.register_forward_pre_hook(lambda _, args: streams.append(args[0][0]))
        )
        out = self.model(torch.tensor([token_ids]), output_attentions=True, use_cache=False)
        for hook in hooks:
            hook.remove()
        spreads = [
            head[query, : query + 1].log().std()
            for layer in out.attentions
            for head in layer[0]
            for query in range(16, len(token_ids))
        ]
        return OracleOutput(tuple(streams), out.logits[0], float(torch.stack(spreads).mean()))

    def weights(self) -> ModelWeights:
        """The model's parameters by our names."""
        return ModelWeights(
            embed_tokens=self.model.model.embed_tokens.weight.data,
            layers=tuple(_layer(layer) for layer in self.model.model.layers),
            norm=self.model.model.norm.weight.data,
            lm_head=DenseWeight(self.model.lm_head.weight.data),
        )


def _layer(layer: torch.nn.Module) -> LayerWeights:
    attention, mlp = layer.self_attn, layer.mlp
    gate, up = mlp.experts.gate_up_proj.data.chunk(2, dim=1)
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
        experts=ExpertWeights(DenseWeight(gate), DenseWeight(up), DenseWeight(mlp.experts.down_proj.data)),
        shared_expert=ExpertWeights(
            DenseWeight(mlp.shared_experts.gate_proj.weight.data),
            DenseWeight(mlp.shared_experts.up_proj.weight.data),
            DenseWeight(mlp.shared_experts.down_proj.weight.data),
        ),
    )
