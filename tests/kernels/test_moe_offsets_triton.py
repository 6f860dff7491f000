"""Addresses beyond 2^31 elements: in sparse files, of which only what is touched takes room."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from sparkstral.kernels.moe_experts.triton_few import FewConfig, FewSpecs
from sparkstral.kernels.moe_experts.triton_many import ManySpecs
from sparkstral.kernels.nvfp4_linear.triton_kernel import FewProgram, ManyTile
from tests.kernels.nvfp4_weights import draw

HIDDEN, INNER, SLOTS = 64, 32, 5
FAR = 2**31 // HIDDEN + 3  # the row whose elements lie past 2^31
TILE = ManyTile(16, 32, 32, num_warps=4, num_stages=2)
PROGRAM = FewProgram(32, 4, 1)


def sparse(folder: Path, elements: int, dtype: torch.dtype) -> Tensor:
    """Zeros that take no memory until they are written."""
    file = folder / f"{elements}-{dtype}"
    file.touch()
    with file.open("r+b") as stream:
        stream.truncate(elements * dtype.itemsize)
    return torch.from_numpy(np.memmap(file, np.uint8, "r+")).view(dtype)


def many_specs() -> ManySpecs:
    return ManySpecs(HIDDEN, INNER, 1, SLOTS, TILE, TILE, residual=False, ptx=False, pdl=False)


def ints(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def test_a_far_token_is_gathered(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    weight = draw(2, 2 * INNER, HIDDEN, parts=2, generator=generator)
    x = sparse(tmp_path, (FAR + 1) * HIDDEN, torch.float32).view(-1, HIDDEN)
    x[FAR] = torch.randn(HIDDEN, generator=generator)
    h, packed = torch.zeros(1, INNER), weight.pack()
    many_specs().gate_up().launch(
        (2, 1), packed.codes, packed.scale, packed.factor, x, ints(FAR * SLOTS), ints(0, 1, 1), ints(0, 1, 1), h,
        HIDDEN // 32, pdl=False,
    )  # fmt: skip
    gate, up = (weight.dense()[0].float() @ x[FAR]).chunk(2)
    torch.testing.assert_close(h[0], torch.nn.functional.silu(gate) * up, rtol=1e-3, atol=1e-4)


def test_a_far_pair_is_scattered(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(1)
    weight = draw(2, HIDDEN, INNER, generator=generator)
    h = torch.randn(1, INNER, generator=generator)
    y = sparse(tmp_path, (FAR + 1) * HIDDEN, torch.float32).view(-1, HIDDEN)
    weights = sparse(tmp_path, FAR + 1, torch.float32)
    weights[FAR] = 0.5
    packed = weight.pack()
    many_specs().down().launch(
        (2, 1), packed.codes, packed.scale, packed.factor, h, ints(FAR), weights, ints(0, 1, 1), ints(0, 1, 1), y,
        INNER // 32, pdl=False,
    )  # fmt: skip
    torch.testing.assert_close(y[FAR], 0.5 * weight.dense()[0].float() @ h[0], rtol=1e-3, atol=1e-4)


def test_a_far_expert_is_read(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(2)
    weight = draw(1, HIDDEN, INNER, generator=generator)
    h = torch.randn(INNER, generator=generator).half()
    size = HIDDEN * INNER // 16
    far = 2**31 // size + 5
    codes, scale = sparse(tmp_path, (far + 1) * size, torch.int64), sparse(tmp_path, (far + 1) * size, torch.uint8)
    packed = weight.pack()
    codes[-size:] = packed.codes.flatten()
    scale[-size:] = packed.scale.view(torch.uint8).flatten()
    factor = sparse(tmp_path, far + 1, torch.float32)
    factor[far] = packed.factor[0, 0]
    partial = torch.zeros(1, HIDDEN)
    config = FewConfig(PROGRAM, PROGRAM, PROGRAM, PROGRAM, token_major_max=0)
    FewSpecs(HIDDEN, INNER, SLOTS, config, residual=False, ptx=False, pdl=False).down().launch(
        (HIDDEN // 32, 1), codes, scale.view(torch.float8_e4m3fn), factor,
        h.view(INNER // 16, 4, 4).transpose(0, 1).contiguous().view(torch.int64), torch.full((INNER // 16,), 2.0**14),
        ints(far, 1, 0, 0, 0, 0, 0, 0), partial, INNER // 32, pdl=False,
    )  # fmt: skip
    torch.testing.assert_close(partial[0], weight.dense()[0].float() @ h.float(), rtol=1e-2, atol=1e-2)
