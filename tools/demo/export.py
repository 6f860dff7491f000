"""Makes the shipped checkpoint of trained parameters, and the model of transformers that computes what it
holds.

Owns the order of the work (round, calibrate on rounded weights, write); formats are native_layout's and
quantise's.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor
from transformers import Mistral4ForCausalLM

from tools.demo import model_config as shape
from tools.demo import native_layout
from tools.demo.calibrate import measure_input_amax
from tools.demo.quantise import round_to_nvfp4
from tools.demo.working_model import check_scaling


def rounded(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Parameters as the checkpoint holds them, float32: experts through NVFP4, the rest through BF16."""
    shipped = {}
    for name, tensor in state.items():
        if name.endswith(native_layout.GATE_UP_NAME):
            halves = tensor.float().unflatten(1, (2, -1)).flatten(0, 1)
            shipped[name] = round_to_nvfp4(halves).view(tensor.shape)
        elif name.endswith(native_layout.DOWN_NAME):
            shipped[name] = round_to_nvfp4(tensor.float())
        elif ".shared_experts." in name:
            shipped[name] = round_to_nvfp4(tensor.float()[None])[0]
        else:
            shipped[name] = tensor.bfloat16().float()
    return shipped


def computing_dtype(device: torch.device) -> torch.dtype:
    """BF16 on a GPU, as the model is served there; float32 on a CPU."""
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def model_of(state: Mapping[str, Tensor], device: torch.device, dtype: torch.dtype) -> Mistral4ForCausalLM:
    """transformers' model with these parameters, ready to generate (SDPA attention)."""
    config = shape.hf_config()
    config._attn_implementation = "sdpa"
    config._experts_implementation = "grouped_mm"
    model = Mistral4ForCausalLM(config)
    model.load_state_dict(dict(state))
    check_scaling(model)
    inverse_frequencies = model.model.rotary_emb.inv_freq
    model = model.to(device, dtype).eval()
    model.model.rotary_emb.inv_freq = inverse_frequencies.to(
        device
    )  # .to(dtype) rounds it with the parameters
    return model


def write_checkpoint(
    state: Mapping[str, Tensor], calibration_ids: Tensor, tekken_path: Path, folder: Path
) -> int:
    """Write the native checkpoint of float32 parameters under transformers' names; returns its bytes.

    calibration_ids: [T] tokens of real conversations; their activations set input_global_scale.
    """
    device = calibration_ids.device
    model = model_of(rounded(state), device, computing_dtype(device))
    input_amax = measure_input_amax(
        model, lambda: model.model(input_ids=calibration_ids[None], use_cache=False)
    )
    return native_layout.write(state, input_amax, tekken_path, folder)
