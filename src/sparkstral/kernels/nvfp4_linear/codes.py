"""Device functions on packed codes: sixteen codes times float16 activations, and sixteen codes as bfloat16.

Owns the arithmetic of one int64 of codes (packing.py has its bits) and the form of activations that it needs; must not
know experts or grids. What needs it exists twice: as PTX, whose instructions were counted, and (PTX = False) in plain
operations, which the interpreter can run. The two agree to the bit but for one rounding of each float16 product, exact
in all but subnormal cases.

Exactness: an activation with 8 significant bits (bfloat16) or 11 (float16) is scaled by a power of two to below
2^15, so that a product with a code · 2^-14 is at most 6 · 2, and a sum of eight at most 96, far from 65504 whatever
the model's activations are. Eight products are added in float16 (relative error 2^-11 of the partial sum), the rest
in float32.
"""

from __future__ import annotations

import triton
import triton.language as tl

# (shift of the magnitude, shift of the sign) that bring pair j to bits 11-9 and 15 of each half.
_FLOAT16_SHIFTS = ((0, 0), (3, 3), (6, 1), (9, 2))
# ... and to bits 8-6 and 15, where a bfloat16 has them; negative: to the right.
BFLOAT16_SHIFTS = ((-3, 0), (0, 3), (3, 1), (6, 2))


def shifted(register: str, word: str, shift: int) -> str:
    if shift == 0:
        return f"mov.b32 {register}, {word};"
    return f"{'shl' if shift > 0 else 'shr'}.b32 {register}, {word}, {abs(shift)};"


def _dot_ptx(tokens: int) -> tuple[str, str]:
    """16 codes times 16 float16 values of each of `tokens` rows: (PTX, constraints); the outputs come first."""
    lines = [".reg .b32 a, b, t, u, v;", ".reg .b16 low, high;", ".reg .f32 even, odd;"]
    lines += [f".reg .b32 sum{i}; .reg .b32 x{i}_<8>;" for i in range(tokens)]
    lines.append(f"mov.b64 {{a, b}}, ${tokens};")
    for i in range(tokens):
        for j in range(4):
            lines.append(f"mov.b64 {{x{i}_{2 * j}, x{i}_{2 * j + 1}}}, ${tokens + 1 + 4 * i + j};")
    for index in range(8):
        word = "ab"[index // 4]
        magnitude, sign = _FLOAT16_SHIFTS[index % 4]
        lines.append(shifted("u", word, magnitude))
        if magnitude == sign:
            lines.append("and.b32 t, u, 0x8E008E00;")
        else:
            lines += ["and.b32 t, u, 0x0E000E00;", shifted("v", word, sign)]
            lines.append("lop3.b32 t, v, 0x80008000, t, 0xEA;")  # (v & mask) | t
        for i in range(tokens):
            if index == 0:
                lines.append(f"mul.rn.f16x2 sum{i}, t, x{i}_0;")
            else:
                lines.append(f"fma.rn.f16x2 sum{i}, t, x{i}_{index}, sum{i};")
    for i in range(tokens):
        lines += [f"mov.b32 {{low, high}}, sum{i};", "cvt.f32.f16 even, low;", "cvt.f32.f16 odd, high;"]
        lines.append(f"add.f32 ${i}, even, odd;")
    return "{" + "\n".join(lines) + "}", ",".join(["=f"] * tokens + ["l"] * (1 + 4 * tokens))


def _decode_ptx() -> tuple[str, str]:
    """16 codes and a scale -> 16 bfloat16: (PTX, constraints)."""
    lines = [".reg .b32 w0, w1, t, u, v, s;", "mov.b64 {w0, w1}, $16;", "cvt.rn.bf16x2.f32 s, $17, $17;"]
    for index in range(8):
        magnitude, sign = BFLOAT16_SHIFTS[index % 4]
        lines += [shifted("u", f"w{index // 4}", magnitude), "and.b32 t, u, 0x01C001C0;"]
        lines += [shifted("v", f"w{index // 4}", sign), "lop3.b32 t, v, 0x80008000, t, 0xEA;"]
        lines += ["mul.rn.bf16x2 t, t, s;", f"mov.b32 {{${2 * index}, ${2 * index + 1}}}, t;"]
    return "{" + "\n".join(lines) + "}", ",".join(["=h"] * 16 + ["l", "f"])


_DOT1, _DOT1_REGISTERS = map(tl.constexpr, _dot_ptx(1))
_DOT2, _DOT2_REGISTERS = map(tl.constexpr, _dot_ptx(2))
_DOT4, _DOT4_REGISTERS = map(tl.constexpr, _dot_ptx(4))
_DECODE, _DECODE_REGISTERS = map(tl.constexpr, _decode_ptx())

# decode16's numbers are this much smaller than code · scale: code · 2^-126 (its bits in place) times scale · 2^118,
# the largest power for which the largest scale, 448, stays finite in bfloat16.
DECODED_EXPONENT = tl.constexpr(8)
_SCALE_UP = tl.constexpr(2.0**118)


@triton.jit
def dot_bfloat16(a, b, total, PTX: tl.constexpr):
    """a [M, K] · b [K, N] + total: bfloat16 in, float32 out. The interpreter's product knows no bfloat16."""
    return tl.dot(a, b, total) if PTX else tl.dot(a.to(tl.float32), b.to(tl.float32), total)


@triton.jit
def _float16_pair(bits):
    """The two float16 in the low 32 bits of an int64, as float16."""
    low = (bits & 0xFFFF).to(tl.uint16).to(tl.float16, bitcast=True)
    return low, ((bits >> 16) & 0xFFFF).to(tl.uint16).to(tl.float16, bitcast=True)


@triton.jit
def plain_pair(codes, INDEX: tl.constexpr):
    """Codes 2 · INDEX and 2 · INDEX + 1 of an int64 as float16 · 2^-14."""
    word = codes >> (32 * (INDEX // 4))
    pair: tl.constexpr = INDEX % 4
    magnitude: tl.constexpr = 3 * pair
    sign: tl.constexpr = magnitude if pair < 2 else pair - 1
    return _float16_pair(((word << magnitude) & 0x0E000E00) | ((word << sign) & 0x80008000))


@triton.jit
def _plain_products(codes, x, INDEX: tl.constexpr):
    w_low, w_high = plain_pair(codes, INDEX)
    x_low, x_high = _float16_pair(x[INDEX // 2] >> (32 * (INDEX % 2)))
    return w_low * x_low, w_high * x_high


@triton.jit
def _plain_dot(codes, x):
    low, high = _plain_products(codes, x, 0)
    for index in tl.static_range(1, 8):
        next_low, next_high = _plain_products(codes, x, index)
        low += next_low
        high += next_high
    return low.to(tl.float32) + high.to(tl.float32)


@triton.jit
def dot1(codes, x, PTX: tl.constexpr):
    """codes int64, x four int64 (16 float16 along K) -> 2^-14 · their dot product, float32; shapes broadcast."""
    if PTX:
        y = tl.inline_asm_elementwise(
            _DOT1, _DOT1_REGISTERS, [codes, x[0], x[1], x[2], x[3]], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        y = _plain_dot(codes, x)
    return y


@triton.jit
def dot2(codes, a, b, PTX: tl.constexpr):
    """dot1 of two rows of x; the codes are decoded once."""
    if PTX:
        y = tl.inline_asm_elementwise(
            _DOT2, _DOT2_REGISTERS, [codes, a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3]],
            dtype=(tl.float32, tl.float32), is_pure=True, pack=1,
        )  # fmt: skip
    else:
        y = (_plain_dot(codes, a), _plain_dot(codes, b))
    return y


@triton.jit
def dot4(codes, a, b, c, d, PTX: tl.constexpr):
    """dot1 of four rows of x; the codes are decoded once."""
    if PTX:
        y = tl.inline_asm_elementwise(
            _DOT4, _DOT4_REGISTERS,
            [codes, a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3], c[0], c[1], c[2], c[3], d[0], d[1], d[2], d[3]],
            dtype=(tl.float32, tl.float32, tl.float32, tl.float32), is_pure=True, pack=1,
        )  # fmt: skip
    else:
        y = (_plain_dot(codes, a), _plain_dot(codes, b), _plain_dot(codes, c), _plain_dot(codes, d))
    return y


@triton.jit
def decode16(codes, scale, ROWS: tl.constexpr, GROUPS: tl.constexpr, PTX: tl.constexpr):
    """codes [ROWS, GROUPS] int64, scale [ROWS, GROUPS] -> [ROWS, 16 · GROUPS] bfloat16, exactly
    code · scale · 2^-DECODED_EXPONENT (a product has 6 significant bits)."""
    if PTX:
        v = tl.inline_asm_elementwise(
            _DECODE, _DECODE_REGISTERS, [codes, scale.to(tl.float32) * _SCALE_UP],
            dtype=(tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16,
                   tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16,
                   tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16),
            is_pure=True, pack=1,
        )  # fmt: skip
    else:
        factor = scale.to(tl.float32) * 2.0**6  # 2^14 of the codes' placement, 2^-8 of the result
        v = _plain_values(codes, factor)
    # The bits of k from the highest down become dimensions, so that the last reshape puts k in its order.
    a0 = tl.join(v[0], v[8])
    a1 = tl.join(v[1], v[9])
    a2 = tl.join(v[2], v[10])
    a3 = tl.join(v[3], v[11])
    a4 = tl.join(v[4], v[12])
    a5 = tl.join(v[5], v[13])
    a6 = tl.join(v[6], v[14])
    a7 = tl.join(v[7], v[15])
    even = tl.join(tl.join(a0, a4), tl.join(a2, a6))
    odd = tl.join(tl.join(a1, a5), tl.join(a3, a7))
    values = tl.reshape(tl.join(even, odd), (ROWS, 16 * GROUPS))
    if PTX:
        # A move that costs nothing and hides the reshape: Triton 3.6 moves a reshape behind the copy to shared memory,
        # and stops at layouts that this makes illegal.
        values = tl.inline_asm_elementwise(
            "mov.b32 $0, $1;", "=r,r", [values], dtype=tl.bfloat16, is_pure=True, pack=2
        )
    return values


@triton.jit
def _plain_values(codes, factor):
    a = plain_pair(codes, 0)
    b = plain_pair(codes, 1)
    c = plain_pair(codes, 2)
    d = plain_pair(codes, 3)
    e = plain_pair(codes, 4)
    f = plain_pair(codes, 5)
    g = plain_pair(codes, 6)
    h = plain_pair(codes, 7)
    return (
        _times(a[0], factor), _times(a[1], factor), _times(b[0], factor), _times(b[1], factor),
        _times(c[0], factor), _times(c[1], factor), _times(d[0], factor), _times(d[1], factor),
        _times(e[0], factor), _times(e[1], factor), _times(f[0], factor), _times(f[1], factor),
        _times(g[0], factor), _times(g[1], factor), _times(h[0], factor), _times(h[1], factor),
    )  # fmt: skip


@triton.jit
def _times(code, factor):
    return (code.to(tl.float32) * factor).to(tl.bfloat16)


@triton.jit
def power_of_two(amax):
    """The largest power of two that is not above `amax` (float32, at least 0), for scaling by it: (p, 2^14 / p).

    0 gives p = 0; below 2^-113, where 2^14 / p would overflow, p stops. Infinity and NaN stay infinity and NaN in
    what is scaled, and so in every product of it."""
    exponent = tl.maximum((amax.to(tl.int32, bitcast=True) >> 23) & 0xFF, 14)
    inverse = ((268 - exponent) << 23).to(tl.float32, bitcast=True)
    return tl.where(amax > 0, (exponent << 23).to(tl.float32, bitcast=True), 0.0), inverse


@triton.jit
def scale_row(x_ptr, out_ptr, scale_ptr, part, SIZE: tl.constexpr, PARTS: tl.constexpr):
    """Rewrite part `part` of PARTS of a row of x [SIZE] as scaled float16 [4, SIZE/16, 4] (quarter, group, value),
    with a power of two for each group of 16."""
    groups: tl.constexpr = SIZE // 16
    part_groups: tl.constexpr = triton.next_power_of_2(triton.cdiv(groups, PARTS))
    group = part * part_groups + tl.arange(0, part_groups)
    is_group = group < groups
    k = tl.arange(0, 16)
    x = tl.load(x_ptr + group[:, None] * 16 + k[None, :], mask=is_group[:, None], other=0.0).to(tl.float32)
    scale, inverse = power_of_two(tl.max(tl.abs(x), axis=1))
    tl.store(scale_ptr + group, scale, mask=is_group)
    to = (k[None, :] // 4 * groups + group[:, None]) * 4 + k[None, :] % 4
    tl.store(out_ptr + to, (x * inverse[:, None]).to(tl.float16), mask=is_group[:, None])


@triton.jit
def quarter_row(x_ptr, out_ptr, part, SIZE: tl.constexpr, PARTS: tl.constexpr):
    """Part `part` of PARTS of a row of x [SIZE] in the order of `scale_row`, as bfloat16."""
    groups: tl.constexpr = SIZE // 16
    part_groups: tl.constexpr = triton.next_power_of_2(triton.cdiv(groups, PARTS))
    k = part * (16 * part_groups) + tl.arange(0, 16 * part_groups)
    x = tl.load(x_ptr + k, mask=k < SIZE, other=0.0)
    tl.store(out_ptr + (k % 16 // 4 * groups + k // 16) * 4 + k % 4, x.to(tl.bfloat16), mask=k < SIZE)
