"""Small products with dense weights, and what stands around them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from sparkstral.kernels import rms_norm, rope
from sparkstral.kernels.bf16_linear import triton_kernel as linear_kernel
from sparkstral.kernels.latent_write import triton_kernel as latent_write_kernel
from sparkstral.kernels.mla_decode import triton_kernel as decode_kernel
from sparkstral.kernels.rms_norm import triton_kernel as rms_norm_kernel
from sparkstral.kernels.rope import triton_kernel as rope_kernel
from tools.attention_cases.setting import BLOCK_SIZE, EPS, LATENT, NOPE, ROPE, Setting, copies, rotation_of
from tools.device_timing import Case, Prepared, errors


def linear_case(
    s: Setting, shape: str, num_tokens: int, config: linear_kernel.LinearConfig | None, pdl: bool, at_least: int
) -> Prepared:
    """config None: cuBLAS."""
    n, k = s.shapes[shape]
    out_dtype = torch.float32 if shape == "head" else s.dtype
    count = copies(n * k * 2, at_least)
    weights = [s.randn(n, k, std=k**-0.5) for _ in range(count)]
    inputs = [s.randn(num_tokens, k) for _ in range(count)]

    def product(x: Tensor, weight: Tensor) -> Tensor:
        if config is None:
            return F.linear(x, weight)
        return linear_kernel.bf16_linear(x, weight, out_dtype, config=config, pdl=pdl)

    def check() -> dict[str, Any]:
        x, weight = inputs[0], weights[0]
        ours = product(x, weight) if config is None else product(x, weight).float().sum(0).to(out_dtype)
        return errors(ours, F.linear(x, weight), x.double() @ weight.double().T)

    calls = [partial(product, x, weight) for x, weight in zip(inputs, weights, strict=True)]
    return Prepared(calls * (1 if count > 8 else 4), n * k * 2, check=check if num_tokens in (1, 8, 32) else None)


def linear_cases(s: Setting) -> list[Case]:
    base = linear_kernel.CONFIGS[s.capability]
    tiles_only = replace(base, max_fma_tokens=0)
    forms: list[tuple[str, linear_kernel.LinearConfig | None, bool, tuple[int, ...]]] = [
        ("cublas", None, False, (1, 2, 4, 8, 16, 32)),
        ("shipped", base, True, (1, 2, 4, 8, 16, 32)),
        ("shipped, no pdl", base, False, (1, 8, 32)),
        ("fma 32768 x 8 warps", replace(base, fma_elements=32768, fma_num_warps=8), True, (1, 8)),
        ("fma 8192 x 4 warps", replace(base, fma_elements=8192), True, (1, 8)),
        ("tiles", tiles_only, True, (1, 4, 8)),
        ("tiles, no pdl", tiles_only, False, (1,)),
        ("tiles, 264 programs", replace(tiles_only, num_programs=264), True, (1, 32)),
        ("tiles 128 x 64, 7 stages", replace(tiles_only, rows=128, depth=64, num_stages=7), True, (1, 32)),
        ("tiles 64 x 256, 3 stages", replace(tiles_only, depth=256, num_stages=3), True, (1, 32)),
        ("tiles, 3 stages", replace(tiles_only, num_stages=3), True, (1, 32)),
    ]
    if s.small:
        forms = [(n, c and replace(c, rows=16, depth=32, fma_elements=1024), p, m) for n, c, p, m in forms[:2]]
        forms = [(name, config, False, tokens) for name, config, _, tokens in forms]
    return [
        Case("linear", f"{shape}, {m} tokens: {name}", partial(linear_case, s, shape, m, config, pdl))
        for shape in s.shapes
        for name, config, pdl, tokens in forms
        for m in tokens
    ]


def norm_case(s: Setting, num_tokens: int, num_parts: int, pdl: bool, at_least: int) -> Prepared:
    config = rms_norm_kernel.CONFIGS[s.capability]
    streams = [s.randn(num_tokens, s.hidden) for _ in range(copies(num_tokens * s.hidden * 2, at_least, 64))]
    parts = torch.randn(num_parts, num_tokens, s.hidden, device=s.device)
    weight = (1 + 0.1 * s.randn(s.hidden)).to(s.dtype)

    def norm(stream: Tensor) -> Tensor:
        return rms_norm_kernel.add_rms_norm(stream, parts, weight, EPS, config=config, pdl=pdl)

    def check() -> dict[str, Any]:
        joined = streams[0].double() + parts.double().sum(0)
        exact = joined * torch.rsqrt(joined.square().mean(-1, keepdim=True) + EPS) * weight.double()
        plain = rms_norm.rms_norm(streams[0] + parts.sum(0).to(s.dtype), weight, EPS)
        return errors(norm(streams[0].clone()), plain, exact)

    num_bytes = num_tokens * s.hidden * (3 * 2 + 4 * num_parts)
    return Prepared([partial(norm, stream) for stream in streams], num_bytes, check=check)


def write_case(s: Setting, num_tokens: int, num_parts: int, pdl: bool, at_least: int) -> Prepared:
    config = latent_write_kernel.CONFIGS[s.capability]
    width = s.query + LATENT + ROPE
    parts = torch.randn(num_parts, num_tokens, width, device=s.device) * num_parts**-0.5
    q_norm, kv_norm = torch.ones(s.query).to(s.device, s.dtype), torch.ones(LATENT).to(s.device, s.dtype)
    pool = s.randn(num_tokens + 8, BLOCK_SIZE, LATENT + ROPE)
    slots = (torch.randperm(num_tokens, device=s.device) + 3) * BLOCK_SIZE + 5
    rotation = rotation_of(s, num_tokens)

    def write() -> Tensor:
        return latent_write_kernel.write_latents(
            parts, q_norm, kv_norm, rotation, slots, EPS, pool, config=config, pdl=pdl
        )

    def check() -> dict[str, Any]:
        q = write()
        whole = parts.double().sum(0)
        q_a, c_kv, k_rope = whole.split([s.query, LATENT, ROPE], dim=-1)
        exact = [x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) for x in (q_a, c_kv)]
        turned = torch.view_as_complex(k_rope.view(num_tokens, -1, 2)) * rotation.to(torch.complex128)
        exact.append(torch.view_as_real(turned).flatten(-2))
        q_a, c_kv, k_rope = parts.sum(0).to(s.dtype).split([s.query, LATENT, ROPE], dim=-1)
        plain = (
            rms_norm.rms_norm(q_a, q_norm, EPS),
            rms_norm.rms_norm(c_kv, kv_norm, EPS),
            rope.rope(k_rope, rotation),
        )
        ours = torch.cat((q, pool.view(-1, LATENT + ROPE)[slots]), dim=-1)
        return errors(ours, torch.cat(plain, dim=-1), torch.cat(exact, dim=-1))

    return Prepared([write] * 32, num_parts * num_tokens * width * 4, check=check)


def absorb_case(s: Setting, num_tokens: int, num_parts: int, pdl: bool, at_least: int) -> Prepared:
    config = decode_kernel.CONFIGS[s.capability]
    parts = torch.randn(num_parts, num_tokens, s.heads * (NOPE + ROPE), device=s.device) * num_parts**-0.5
    w_uk = [
        s.randn(s.heads, NOPE, LATENT, std=NOPE**-0.5) for _ in range(copies(s.heads * NOPE * LATENT * 2, at_least, 64))
    ]
    rotation = rotation_of(s, num_tokens)
    query_scale = torch.linspace(1, 1.3, num_tokens, device=s.device).to(s.dtype)

    def absorb(weight: Tensor) -> Tensor:
        return decode_kernel.absorb(parts, rotation, query_scale, weight, config=config, pdl=pdl)

    def exact_or_plain(q: Tensor, weight: Tensor) -> Tensor:
        q_nope, q_rope = q.view(num_tokens, s.heads, -1).split([NOPE, ROPE], dim=-1)
        if q.dtype == torch.float64:
            turned = (
                torch.view_as_complex(q_rope.reshape(num_tokens, s.heads, -1, 2))
                * rotation.to(torch.complex128)[:, None]
            )
            q_rope = torch.view_as_real(turned).flatten(-2)
        else:
            q_rope = rope.rope(q_rope, rotation)
        scale = query_scale.to(q.dtype)[:, None, None]
        q_latent = torch.bmm((q_nope * scale).transpose(0, 1), weight.to(q.dtype)).transpose(0, 1)
        return torch.cat((q_latent, q_rope * scale), dim=-1)

    def check() -> dict[str, Any]:
        plain = exact_or_plain(parts.sum(0).to(s.dtype), w_uk[0])
        return errors(absorb(w_uk[0]), plain, exact_or_plain(parts.double().sum(0), w_uk[0]))

    num_bytes = s.heads * NOPE * LATENT * 2 + parts.numel() * 4
    return Prepared([partial(absorb, weight) for weight in w_uk], num_bytes, check=check)


def turn_case(s: Setting, num_tokens: int, at_least: int) -> Prepared:
    q = s.randn(num_tokens, s.heads, NOPE + ROPE)
    rotation, scale = rotation_of(s, num_tokens), torch.ones(num_tokens, device=s.device).to(s.dtype)
    config = rope_kernel.CONFIGS[s.capability]
    turn = partial(rope_kernel.turn_queries, q, rotation, scale, config=config, pdl=False)

    def check() -> dict[str, Any]:
        before = q.clone()
        turn()
        exact = before.double()
        pairs = torch.view_as_complex(exact[..., NOPE:].reshape(num_tokens, s.heads, -1, 2))
        exact[..., NOPE:] = torch.view_as_real(pairs * rotation.to(torch.complex128)[:, None]).flatten(-2)
        plain = torch.cat((before[..., :NOPE], rope.rope(before[..., NOPE:], rotation)), dim=-1)
        return errors(q[..., NOPE:], plain[..., NOPE:], exact[..., NOPE:])

    return Prepared([turn] * 8, q.numel() * 4, check=check)


def small_cases(s: Setting) -> list[Case]:
    found = []
    for tokens in (1, 8, 32):
        for pdl in (False,) if s.small else (True, False):
            tail = f"{tokens} tokens{', pdl' if pdl else ''}"
            found += [
                Case("norms", f"add_rms_norm, 4 parts, {tail}", partial(norm_case, s, tokens, 4, pdl)),
                Case("norms", f"write_latents, 8 parts, {tail}", partial(write_case, s, tokens, 8, pdl)),
                Case("norms", f"absorb, 4 parts, {tail}", partial(absorb_case, s, tokens, 4, pdl)),
            ]
    many = 40 if s.small else 8192
    return [*found, Case("norms", f"turn_queries, {many} tokens", partial(turn_case, s, many))]
