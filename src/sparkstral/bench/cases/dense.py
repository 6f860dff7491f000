"""Products with dense weights, and what stands around them: norms, latents, absorption, rotation."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from sparkstral.bench.cases.case import Case, Prepared, compare, worse
from sparkstral.bench.cases.setting import (
    BLOCK_SIZE,
    EPS,
    LATENT,
    NOPE,
    ROPE,
    VALUE,
    Setting,
    latents_of,
    normed,
    random_pool,
    rotation_of,
    slot_bytes,
    turned,
)
from sparkstral.kernels import rms_norm, rope
from sparkstral.kernels.bf16_linear import triton_kernel as linear_kernel
from sparkstral.kernels.fp8_linear import triton_kernel as fp8_kernel
from sparkstral.kernels.fp8_quantize import Fp8Rows, dequantize, quantize
from sparkstral.kernels.latent_write import triton_kernel as latent_write_kernel
from sparkstral.kernels.mla_decode import triton_kernel as decode_kernel
from sparkstral.kernels.rms_norm import triton_kernel as rms_norm_kernel
from sparkstral.kernels.rope import triton_kernel as rope_kernel
from sparkstral.model.fast_weights import Matrix, as_held, memory_of
from sparkstral.model.linear import to_fp8
from sparkstral.types import Precision

DECODE_TOKENS = (1, 2, 4, 8, 16, 32)
PREFILL_TOKENS = (1024, 4096, 8192)


def weight_shapes(s: Setting) -> dict[str, tuple[int, int]]:
    """[N, K] of a layer's products, and of the head."""
    return {
        "a": (s.query + LATENT + ROPE, s.hidden),
        "q_b": (s.heads * (NOPE + ROPE), s.query),
        "o": (s.hidden, s.heads * VALUE),
        "head": (s.vocab, s.hidden),
    }


def parts_of(s: Setting, weight: str, num_tokens: int) -> tuple[int, torch.dtype]:
    """In how many parts, and of which dtype, bf16_linear leaves a product."""
    config, (n, k) = s.configs["bf16_linear"], weight_shapes(s)[weight]
    if num_tokens <= config.max_fma_tokens:
        return 1, s.dtype
    parts = linear_kernel.num_parts(n, k, config)
    return parts, s.dtype if parts == 1 else torch.float32


def linear_case(s: Setting, shape: str, num_tokens: int, at_least: int, *, library: bool = False) -> Prepared:
    """`library`: PyTorch's own product, for comparison and for prompts."""
    n, k = weight_shapes(s)[shape]
    out_dtype = torch.float32 if shape == "head" else s.dtype
    count = s.copies(n * k * 2, at_least)
    weights = s.kept.setdefault(("linear", shape), [])
    weights += [s.randn(n, k, std=k**-0.5) for _ in range(count - len(weights))]
    inputs = [s.randn(num_tokens, k) for _ in range(count)]

    def product(x: Tensor, weight: Tensor) -> Tensor:
        if library:
            return F.linear(x, weight)
        return linear_kernel.bf16_linear(x, weight, out_dtype, config=s.configs["bf16_linear"], pdl=s.pdl)

    def check() -> dict[str, Any]:
        x, weight = inputs[0], weights[0]
        ours = product(x, weight).float().sum(0).to(out_dtype)
        return compare(ours, F.linear(x.bfloat16(), weight.bfloat16()), x.double() @ weight.double().T)

    calls = [partial(product, x, weight) for x, weight in zip(inputs, weights, strict=False)]
    num_bytes = 2 * (n * k + num_tokens * k) + num_tokens * n * out_dtype.itemsize
    return Prepared(
        calls * (1 if count > 8 else 4), num_bytes, 2 * num_tokens * n * k if library else 0,
        check=None if library else check,
    )  # fmt: skip


def fp8_weights(s: Setting, shape: str, count: int) -> list[Fp8Rows]:
    n, k = weight_shapes(s)[shape]
    weights: list[Fp8Rows] = s.kept.setdefault(("fp8", shape), [])
    weights += [to_fp8(s.randn(n, k, std=k**-0.5)) for _ in range(count - len(weights))]
    return weights


def fp8_linear_case(s: Setting, shape: str, num_tokens: int, at_least: int) -> Prepared:
    n, k = weight_shapes(s)[shape]
    out_dtype = torch.float32 if shape == "head" else s.dtype
    count = s.copies(n * k, at_least)
    weights, inputs = fp8_weights(s, shape, count), [s.randn(num_tokens, k) for _ in range(count)]

    def product(x: Tensor, weight: Fp8Rows) -> Tensor:
        return fp8_kernel.fp8_linear(x, weight, out_dtype, config=s.configs["fp8_linear"], pdl=s.pdl)

    def check() -> dict[str, Any]:
        x, weight = inputs[0], dequantize(weights[0], torch.bfloat16)
        ours = product(x, weights[0]).float().sum(0).to(out_dtype)
        return compare(ours, F.linear(x.bfloat16(), weight), x.double() @ weight.double().T)

    calls = [partial(product, x, weight) for x, weight in zip(inputs, weights, strict=False)]
    num_bytes = n * k + 4 * n + 2 * num_tokens * k + num_tokens * n * out_dtype.itemsize
    return Prepared(calls * (1 if count > 8 else 4), num_bytes, check=check)


def decode_weight_case(s: Setting, shape: str, at_least: int) -> Prepared:
    """What a prompt's products take more, each once a layer and step."""
    n, k = weight_shapes(s)[shape]
    weights, out = fp8_weights(s, shape, s.copies(n * k, at_least, 16)), s.randn(n, k)

    def check() -> dict[str, Any]:
        fp8_kernel.dequantize(weights[0], out)
        exact = dequantize(weights[0], torch.float32)
        return {"wrong_numbers": int((out != exact).sum()), "worst": []}

    return Prepared([partial(fp8_kernel.dequantize, weight, out) for weight in weights], 3 * n * k + 4 * n, check=check)


def norm_case(s: Setting, num_tokens: int, parts_dtype: tuple[int, torch.dtype] | None, at_least: int) -> Prepared:
    """`parts_dtype` None: the stream holds all already."""
    streams = [s.randn(num_tokens, s.hidden) for _ in range(s.copies(num_tokens * s.hidden * 2, at_least, 64))]
    weight = (1 + 0.1 * s.randn(s.hidden)).to(s.dtype)
    parts = None
    if parts_dtype is not None:
        num_parts, dtype = parts_dtype
        parts = (torch.randn(num_parts, num_tokens, s.hidden, device=s.device) * num_parts**-0.5).to(dtype)

    def norm(stream: Tensor) -> Tensor:
        return rms_norm_kernel.add_rms_norm(stream, parts, weight, EPS, config=s.configs["rms_norm"], pdl=s.pdl)

    def check() -> dict[str, Any]:
        stream = streams[0]
        exact, plain = stream.double(), stream.bfloat16()
        if parts is not None:
            exact, plain = exact + parts.double().sum(0), plain + parts.float().sum(0).bfloat16()
        ours = norm(stream.clone())
        return compare(ours, rms_norm.rms_norm(plain, weight.bfloat16(), EPS), normed(exact) * weight.double())

    moved = 2 * 2 if parts is None else 3 * 2 + parts.nbytes / parts[0].numel()
    return Prepared([partial(norm, stream) for stream in streams], num_tokens * s.hidden * moved, check=check)


def chosen_norm_case(s: Setting, num_tokens: int, at_least: int) -> Prepared:
    """The last norm, of one row a request, before the head."""
    stream, weight = s.randn(num_tokens, s.hidden), (1 + 0.1 * s.randn(s.hidden)).to(s.dtype)
    rows = torch.arange(num_tokens - 1, -1, -1, device=s.device)

    def norm() -> Tensor:
        return rms_norm_kernel.add_rms_norm(
            stream, None, weight, EPS, config=s.configs["rms_norm"], pdl=s.pdl, rows=rows
        )

    def check() -> dict[str, Any]:
        exact = (normed(stream.double()) * weight.double())[rows]
        return compare(norm(), rms_norm.rms_norm(stream.bfloat16(), weight.bfloat16(), EPS)[rows], exact)

    return Prepared([norm] * 16, num_tokens * s.hidden * 2 * 2, check=check)


def write_case(
    s: Setting, num_tokens: int, parts_dtype: tuple[int, torch.dtype], at_least: int, *, kv: Precision = "bf16"
) -> Prepared:
    num_parts, dtype = parts_dtype
    width = s.query + LATENT + ROPE
    parts = (torch.randn(num_parts, num_tokens, width, device=s.device) * num_parts**-0.5).to(dtype)
    q_norm, kv_norm = torch.ones(s.query).to(s.device, s.dtype), torch.ones(LATENT).to(s.device, s.dtype)
    pool = random_pool(s, num_tokens + 8, kv)
    slots = (torch.randperm(num_tokens).to(s.device) + 3) * BLOCK_SIZE + 5
    rotation = rotation_of(s, num_tokens)

    def write() -> Tensor:
        return latent_write_kernel.write_latents(
            parts, q_norm, kv_norm, rotation, slots, EPS, pool, config=s.configs["latent_write"], pdl=s.pdl
        )

    def as_cached(c_kv: Tensor) -> Tensor:
        """In FP8 the last place is wide: where a value lies between two, both are as good, so both sides are
        rounded."""
        return c_kv if kv == "bf16" else dequantize(quantize(c_kv), torch.float32).to(c_kv.dtype)

    def check() -> dict[str, Any]:
        everything = torch.arange(len(pool), device=s.device)
        before = latents_of(pool, everything, len(pool) * BLOCK_SIZE)
        q = write()
        q_a, c_kv, k_rope = parts.double().sum(0).split([s.query, LATENT, ROPE], dim=-1)
        exact = (normed(q_a), as_cached(normed(c_kv)), turned(k_rope, rotation))
        q_a, c_kv, k_rope = parts.float().sum(0).bfloat16().split([s.query, LATENT, ROPE], dim=-1)
        plain = (
            rms_norm.rms_norm(q_a, q_norm.bfloat16(), EPS),
            as_cached(rms_norm.rms_norm(c_kv, kv_norm.bfloat16(), EPS)),
            rope.rope(k_rope, rotation),
        )
        entries = latents_of(pool, everything, len(pool) * BLOCK_SIZE)
        ours = (q, *torch.split(entries[slots], [LATENT, ROPE], dim=-1))
        pairs = list(zip(ours, plain, exact, strict=True))
        if s.small and kv == "fp8":
            pairs.pop()  # k_rope is bfloat16 there, which the interpreter cuts off instead of rounding
        found = worse(*(compare(*each) for each in pairs))
        before[slots] = entries[slots]
        found["holds"] = {"nothing else is written": torch.equal(before, entries)}
        return found

    num_bytes = num_tokens * (width * num_parts * dtype.itemsize + 2 * s.query + slot_bytes(kv))
    return Prepared([write] * 32, num_bytes, check=check)


def absorb_case(
    s: Setting, num_tokens: int, parts_dtype: tuple[int, torch.dtype], at_least: int, *, dense: Precision = "bf16"
) -> Prepared:
    num_parts, dtype = parts_dtype
    parts = (torch.randn(num_parts, num_tokens, s.heads * (NOPE + ROPE), device=s.device) * num_parts**-0.5).to(dtype)
    count = s.copies(s.heads * NOPE * LATENT * 2, at_least, 64)
    w_uk = [as_held(s.randn(s.heads, NOPE, LATENT, std=NOPE**-0.5), dense) for _ in range(count)]
    rotation = rotation_of(s, num_tokens)
    query_scale = torch.linspace(1, 1.3, num_tokens, device=s.device).bfloat16().to(s.dtype)

    o_proj = s.randn(s.hidden, s.heads * VALUE)

    def absorb(weight: Matrix) -> Tensor:
        return decode_kernel.absorb(
            parts, rotation, query_scale, weight, config=s.configs["mla_decode"], pdl=s.pdl, next_weight=o_proj
        )

    def absorbed(q: Tensor, weight: Tensor) -> Tensor:
        q_nope, q_rope = torch.split(q.view(num_tokens, s.heads, -1), [NOPE, ROPE], dim=-1)
        q_rope = turned(q_rope, rotation) if q.dtype == torch.float64 else rope.rope(q_rope, rotation)
        scale = query_scale.to(q.dtype)[:, None, None]
        q_latent = torch.bmm((q_nope * scale).transpose(0, 1), weight.to(q.dtype)).transpose(0, 1)
        return torch.cat((q_latent, q_rope * scale), dim=-1)

    def check() -> dict[str, Any]:
        held = w_uk[0]
        weight = held if isinstance(held, Tensor) else dequantize(held, torch.float32)
        plain = absorbed(parts.float().sum(0).bfloat16(), weight)
        return compare(absorb(held), plain, absorbed(parts.double().sum(0), weight))

    num_bytes = memory_of(w_uk[0]).nbytes + parts.nbytes + num_tokens * s.heads * (LATENT + ROPE) * 2
    return Prepared([partial(absorb, weight) for weight in w_uk], num_bytes, check=check)


def turn_case(s: Setting, num_tokens: int, at_least: int) -> Prepared:
    q = s.randn(num_tokens, s.heads, NOPE + ROPE)
    rotation, scale = rotation_of(s, num_tokens), torch.ones(num_tokens).to(s.device, s.dtype)

    def turn() -> None:
        rope_kernel.turn_queries(q, rotation, scale, config=s.configs["rope"], pdl=s.pdl)

    def check() -> dict[str, Any]:
        before = q.clone()
        turn()
        exact = turned(before[..., NOPE:].double(), rotation)
        found = compare(q[..., NOPE:], rope.rope(before[..., NOPE:].bfloat16(), rotation), exact)
        found["holds"] = {"other lanes stay": torch.equal(q[..., :NOPE], before[..., :NOPE])}
        return found

    return Prepared([turn] * 8, 2 * q.nbytes, check=check)


def linear_cases(s: Setting) -> list[Case]:
    found = [
        Case(operation, f"{shape}, {m} tokens", partial(make, s, shape, m))
        for operation, make in (("bf16_linear", linear_case), ("fp8_linear", fp8_linear_case))
        for shape in weight_shapes(s)
        for m in s.counts(*DECODE_TOKENS)
    ]
    found += [
        Case("fp8_linear", f"decode {shape}", partial(decode_weight_case, s, shape)) for shape in ("a", "q_b", "o")
    ]
    return found


def around_cases(s: Setting) -> list[Case]:
    """Norms, latents, absorption and rotation, after the products that they follow in a decode step and a prompt."""
    found = []
    for m in s.counts(*DECODE_TOKENS):
        o, a, q_b = (parts_of(s, weight, m) for weight in ("o", "a", "q_b"))
        found += [
            Case("rms_norm", f"after o, {m} tokens", partial(norm_case, s, m, o)),
            Case("rms_norm", f"after experts, {m} tokens", partial(norm_case, s, m, None)),
            Case("rms_norm", f"before head, {m} tokens", partial(chosen_norm_case, s, m)),
            Case("latent_write", f"{m} tokens", partial(write_case, s, m, a)),
            Case("latent_write", f"{m} tokens, KV FP8", partial(write_case, s, m, a, kv="fp8")),
            Case("mla_decode", f"absorb, {m} tokens", partial(absorb_case, s, m, q_b)),
            Case("mla_decode", f"absorb, {m} tokens, FP8", partial(absorb_case, s, m, q_b, dense="fp8")),
        ]
    whole = (1, s.dtype)
    for m in (40,) if s.small else PREFILL_TOKENS:
        found += [
            Case("rms_norm", f"after o, {m} tokens", partial(norm_case, s, m, whole)),
            Case("rms_norm", f"after experts, {m} tokens", partial(norm_case, s, m, None)),
            Case("latent_write", f"{m} tokens", partial(write_case, s, m, whole)),
            Case("latent_write", f"{m} tokens, KV FP8", partial(write_case, s, m, whole, kv="fp8")),
            Case("rope", f"turn queries, {m} tokens", partial(turn_case, s, m)),
        ]
    return found
