"""Device functions on packed codes for several rows of x: decoded in registers as operands of the matrix unit.

Owns the arithmetic of `add_products`, a warp's `mma.sync` of 16 weight rows and eight rows of x, decoded weights on the
left: they never pass through shared memory, and eight rows of x cost the decoding of one. Written as inline PTX over
Triton's own tiles, and right only if a thread holds of a tile [8 · warps, 8] what a lane of `mma.sync` must hold: lane
4r + q has row r and columns 2q and 2q + 1. That is the layout of reads of 16 bytes a thread, which is what the tiles
of codes are made for; tests hold every compiled variant to it. Source: PTX ISA, mma.m16n8k16.

Along K a lane's part of an instruction is its own: 4 neighbours of the 16 of its group, whichever group that is, as
long as weights and x agree. So a lane takes its int64 of codes quarter by quarter, and x lies in quarters likewise
(moe_route's FewRouting.x). Decoded weights are exact, as in codes.decode16; sums are float32.
"""

from __future__ import annotations

import triton
import triton.language as tl

from sparkstral.kernels.nvfp4_linear.codes import BFLOAT16_SHIFTS, plain_pair, shifted


def products_ptx() -> tuple[str, str]:
    """(PTX, constraints) of one warp: sums [lower, upper] += two groups' codes of two rows times 8 rows of x.

    Operands, two neighbours each: lower and upper sums; then codes of the lower and the upper rows, their scales,
    x's four quarters, and the sums before."""
    lines = [".reg .b32 w0, w1, t, u, v, lower, upper;", ".reg .b32 a<4>; .reg .b32 b<2>; .reg .b32 word<4>;"]
    lines += [".reg .f32 c<4>;", *(f"mov.f32 c{i}, ${20 + i};" for i in range(4))]
    for group in range(2):
        lines += [f"mov.b64 {{word{2 * half}, word{2 * half + 1}}}, ${4 + 2 * half + group};" for half in range(2)]
        lines += [
            f"cvt.rn.bf16x2.f32 {scale}, ${operand + group}, ${operand + group};"
            for scale, operand in (("lower", 8), ("upper", 10))
        ]
        for quarter in range(4):
            for half, scale in enumerate(("lower", "upper")):
                for part in range(2):
                    magnitude, sign = BFLOAT16_SHIFTS[2 * (quarter % 2) + part]
                    word, a = f"word{2 * half + quarter // 2}", f"a{2 * part + half}"
                    lines += [shifted("u", word, magnitude), "and.b32 t, u, 0x01C001C0;", shifted("v", word, sign)]
                    lines += ["lop3.b32 t, v, 0x80008000, t, 0xEA;", f"mul.rn.bf16x2 {a}, t, {scale};"]
            lines.append(f"mov.b64 {{b0, b1}}, ${12 + 2 * quarter + group};")
            lines.append(
                "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {c0, c1, c2, c3}, {a0, a1, a2, a3}, {b0, b1}, "
                "{c0, c1, c2, c3};"
            )
    lines += [f"mov.f32 ${i}, c{i};" for i in range(4)]
    return "{" + "\n".join(lines) + "}", ",".join(["=f"] * 4 + ["l"] * 4 + ["f"] * 4 + ["l"] * 8 + ["f"] * 4)


_PRODUCTS, _REGISTERS = map(tl.constexpr, products_ptx())
_SCALE_UP = tl.constexpr(2.0**118)  # as in codes.decode16


@triton.jit
def add_products(
    lower_codes, upper_codes, lower_scale, upper_scale, x, lower, upper, ROWS: tl.constexpr, PTX: tl.constexpr
):
    """lower and upper [ROWS, 8] float32, plus codes [ROWS, 8] int64 with scales [ROWS, 8] times eight rows of x,
    2^-DECODED_EXPONENT times. x: four quarters [ROWS, 8] int64 (4 bfloat16 each), x's row r % 8 in row r."""
    if PTX:
        tl.static_assert(lower_codes.shape[1] == 8, "the layout is that of tiles of eight groups")
        lower, upper = tl.inline_asm_elementwise(
            _PRODUCTS, _REGISTERS,
            [lower_codes, upper_codes, lower_scale.to(tl.float32) * _SCALE_UP, upper_scale.to(tl.float32) * _SCALE_UP,
             x[0], x[1], x[2], x[3], lower, upper],
            dtype=(tl.float32, tl.float32), is_pure=False, pack=2,
        )  # fmt: skip
    else:
        for quarter in tl.static_range(4):
            # The rows of x repeat: any of its copies will do.
            words = tl.max(tl.reshape(x[quarter], (ROWS // 8, 8, 8)), axis=0)
            for part in tl.static_range(2):
                x_pair = _bfloat16_pair(words >> (32 * part))
                lower += _plain_products(plain_pair(lower_codes, 2 * quarter + part), lower_scale, x_pair)
                upper += _plain_products(plain_pair(upper_codes, 2 * quarter + part), upper_scale, x_pair)
    return lower, upper


@triton.jit
def _bfloat16_pair(bits):
    """The two bfloat16 in the low 32 bits of an int64, as float32."""
    low = ((bits & 0xFFFF) << 16).to(tl.uint32).to(tl.float32, bitcast=True)
    return low, (bits & 0xFFFF0000).to(tl.uint32).to(tl.float32, bitcast=True)


@triton.jit
def _plain_products(codes, scale, x):
    factor = scale.to(tl.float32) * 2.0**6  # as in codes.decode16
    low = (codes[0].to(tl.float32) * factor)[:, None, :] * x[0][None, :, :]
    high = (codes[1].to(tl.float32) * factor)[:, None, :] * x[1][None, :, :]
    return tl.sum(low + high, axis=2)


@triton.jit
def to_bfloat16(x, PTX: tl.constexpr):
    """float32 -> bfloat16, to nearest; the interpreter cuts."""
    if not PTX:
        bits = x.to(tl.uint32, bitcast=True)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
        x = bits.to(tl.float32, bitcast=True)
    return x.to(tl.bfloat16)
