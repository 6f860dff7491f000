"""The inline PTX of nvfp4_linear.matrix: what it computes, lane by lane, and that a thread holds what a lane must.

No GPU is needed: the few instructions are carried out here on a warp's registers, and `mma.sync` as the PTX ISA says
which lane holds which element.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import numpy as np
import torch

from sparkstral.kernels.nvfp4_linear.matrix import products_ptx
from sparkstral.kernels.nvfp4_linear.packing import reorder
from sparkstral.kernels.nvfp4_linear.reference import dequantize

LANE = np.arange(32)
ROW, QUAD = LANE // 4, LANE % 4


def bfloat16(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def to_bits(values: np.ndarray) -> np.ndarray:
    return torch.from_numpy(values.astype(np.float32)).bfloat16().view(torch.int16).numpy().astype(np.uint32) & 0xFFFF


def halves(word: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return bfloat16(word & 0xFFFF), bfloat16(word >> 16)


def multiplied(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    low, high = (to_bits(x * y) for x, y in zip(halves(a), halves(b), strict=True))
    return low | high << 16


def mma(a: list[np.ndarray], b: list[np.ndarray], c: list[np.ndarray]) -> list[np.ndarray]:
    """m16n8k16 by the PTX ISA's fragments."""
    left, right = np.zeros((16, 16)), np.zeros((16, 8))
    for register in range(4):
        for half in range(2):
            k = 2 * QUAD + half + 8 * (register // 2)
            left[ROW + 8 * (register % 2), k] = halves(a[register])[half]
    for register in range(2):
        for half in range(2):
            right[2 * QUAD + half + 8 * register, ROW] = halves(b[register])[half]
    product = left @ right
    return [c[i] + product[ROW + 8 * (i // 2), 2 * QUAD + i % 2] for i in range(4)]


def carry_out(ptx: str, operands: dict[int, np.ndarray]) -> dict[int, np.ndarray]:
    """A warp's run: 64-bit and float operands by number -> the outputs."""
    registers: dict[str, np.ndarray] = {}
    outputs: dict[int, np.ndarray] = {}

    def value(name: str) -> np.ndarray:
        return operands[int(name[1:])] if name.startswith("$") else registers[name]

    for line in ptx.strip("{}").split("\n"):
        for statement in filter(None, (part.strip() for part in line.split(";"))):
            operation, _, rest = statement.partition(" ")
            if operation == ".reg":
                continue
            names = re.findall(r"\$?\w+", rest)
            if operation.startswith("mma"):
                c = mma([value(n) for n in names[4:8]], [value(n) for n in names[8:10]], [value(n) for n in names[10:]])
                registers.update(zip(names[:4], c, strict=True))
            elif operation == "mov.b64":
                registers[names[0]], registers[names[1]] = value(names[2]) & 0xFFFFFFFF, value(names[2]) >> 32
            elif operation == "mov.f32" and names[0].startswith("$"):
                outputs[int(names[0][1:])] = value(names[1])
            elif operation in ("mov.f32", "mov.b32"):
                registers[names[0]] = value(names[1])
            elif operation == "shl.b32":
                registers[names[0]] = value(names[1]) << int(names[2]) & 0xFFFFFFFF
            elif operation == "shr.b32":
                registers[names[0]] = value(names[1]) >> int(names[2])
            elif operation == "and.b32":
                registers[names[0]] = value(names[1]) & int(names[2], 16)
            elif operation == "lop3.b32" and names[4] == "0xEA":
                registers[names[0]] = value(names[1]) & int(names[2], 16) | value(names[3])
            elif operation == "mul.rn.bf16x2":
                registers[names[0]] = multiplied(value(names[1]), value(names[2]))
            elif operation == "cvt.rn.bf16x2.f32":
                registers[names[0]] = to_bits(value(names[1])) << 16 | to_bits(value(names[2]))
            else:
                raise AssertionError(statement)
    return outputs


def test_the_instructions_are_the_product() -> None:
    generator = torch.Generator().manual_seed(0)
    columns = 8 * 16
    packed = torch.randint(0, 256, (16, columns // 2), dtype=torch.uint8, generator=generator)
    scale = torch.randint(1, 0x7F, (16, 8), dtype=torch.uint8, generator=generator).view(torch.float8_e4m3fn)
    x = torch.randn(8, columns, generator=generator).bfloat16()
    before = np.arange(16 * 8, dtype=np.float64).reshape(16, 8)

    codes = reorder(packed).numpy().view(np.uint64)
    scales = (scale.float() * 2.0**118).numpy()
    quarters = x.view(torch.int16).numpy().view(np.uint16).astype(np.uint64).reshape(8, 8, 4, 4)
    words = sum(quarters[..., i] << np.uint64(16 * i) for i in range(4))  # [row of x, group, quarter]
    operands: dict[int, np.ndarray] = {}
    for part in range(2):  # of a thread's two groups, or columns
        at = 2 * QUAD + part
        for half in range(2):
            operands[4 + 2 * half + part] = codes[ROW + 8 * half, at]
            operands[8 + 2 * half + part] = scales[ROW + 8 * half, at]
            operands[20 + 2 * half + part] = before[ROW + 8 * half, at]
        for quarter in range(4):
            operands[12 + 2 * quarter + part] = words[ROW, at, quarter]
    found = carry_out(products_ptx()[0], operands)

    weight = dequantize(packed, scale, torch.tensor(1.0), torch.float32).double().numpy()
    expected = before + weight @ x.double().numpy().T * 2.0**-8
    for i in range(4):
        np.testing.assert_allclose(found[i], expected[ROW + 8 * (i // 2), 2 * QUAD + i % 2], rtol=1e-12)


LAYOUTS = """
import json, re
from sparkstral.kernels import build

found = []
for capability in (90, 121):
    build.stand_in(capability)
    for spec in build.specs_of("moe_experts", capability):
        if "_matrix" not in spec.name:
            continue
        spec.function.device_caches.clear()
        text = build.warm_up(spec).asm["ttgir"]
        layouts = dict(re.findall(r"^(#\\w+) = (#ttg.+)$", text, re.M))
        used = re.findall(r'elementwise_inline_asm "[^"]*mma.sync[^"]*".*?-> (.+?) loc', text)
        found.append([spec.name, [layouts[name] for each in used for name in re.findall(r"#\\w+", each)]])
print(json.dumps(found))
"""


def test_a_thread_holds_what_a_lane_must() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", LAYOUTS], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert len(found) == 4
    for name, layouts in found:
        assert layouts, name
        for layout in layouts:
            assert "sizePerThread = [1, 2], threadsPerWarp = [8, 4], warpsPerCTA = [" in layout, (name, layout)
            assert ", 1], order = [1, 0]" in layout, (name, layout)
