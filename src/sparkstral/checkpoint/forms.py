"""The three forms in which files store a matrix, and which tensors belong to each.

Owns suffixes, dtypes and shapes of the parts; the form is decided by the tensors present, never by an ignore
list (the released one mixes names of two layouts and misses the output head). Must not know which matrix it
is.
Source: docs/model.md 3.2 to 3.5.

    dense  weight [N, K] BF16 or F32
    fp8    weight [N, K] F8_E4M3, one scale (a multiplier): qscale_weight, weight_scale_inv or weight_scale
    nvfp4  weight_packed [N, K/2] U8, weight_scale [N, K/16] F8_E4M3, weight_global_scale [1] F32 (a divisor);
           with activations in NVFP4 too input_global_scale [1] F32 (a divisor)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from sparkstral.checkpoint.index import TensorEntry

NVFP4_GROUP = 16  # weights that share one F8_E4M3 scale


class Form(StrEnum):
    DENSE = "dense"
    FP8 = "fp8"
    NVFP4 = "nvfp4"


class Part(StrEnum):
    WEIGHT = "weight"
    PACKED = "packed"
    SCALE = "scale"
    GLOBAL_SCALE = "global_scale"
    INPUT_SCALE = "input_scale"  # of what the matrix is multiplied with; read on demand


DENSE_DTYPES = ("BF16", "F32")
# By form and part: the dtypes that files may have. The first is the one that the engine keeps.
PART_DTYPES: Mapping[tuple[Form, Part], tuple[str, ...]] = {
    (Form.DENSE, Part.WEIGHT): DENSE_DTYPES,
    (Form.FP8, Part.WEIGHT): ("F8_E4M3",),
    (Form.FP8, Part.SCALE): ("F32", "BF16"),  # which one the release has was not seen
    (Form.NVFP4, Part.PACKED): ("U8",),
    (Form.NVFP4, Part.SCALE): ("F8_E4M3",),
    (Form.NVFP4, Part.GLOBAL_SCALE): ("F32",),
    (Form.NVFP4, Part.INPUT_SCALE): ("F32",),
}


@dataclass(frozen=True, slots=True)
class Suffixes:
    """What is appended to a matrix's stem to name its tensors."""

    weight: str
    fp8_scales: tuple[str, ...]  # the first that is there
    activation_scales: tuple[str, ...]
    nvfp4: Mapping[Part, str]


NVFP4_INPUT_SCALE = ".input_global_scale"
MODULE_SUFFIXES = Suffixes(
    weight=".weight",
    fp8_scales=(".qscale_weight", ".weight_scale_inv", ".weight_scale"),
    activation_scales=(NVFP4_INPUT_SCALE, ".qscale_act", ".activation_scale", ".input_scale"),
    nvfp4={
        Part.PACKED: ".weight_packed",
        Part.SCALE: ".weight_scale",
        Part.GLOBAL_SCALE: ".weight_global_scale",
    },
)
STACKED_SUFFIXES = Suffixes(  # of one tensor that holds all experts; NVFP4 is not saved this way
    weight="", fp8_scales=("_scale_inv",), activation_scales=("_activation_scale",), nvfp4={}
)


@dataclass(frozen=True, slots=True)
class StoredMatrix:
    form: Form
    part_names: Mapping[Part, str]  # the tensors that make it up, whether they are there or not
    activation_scale_names: tuple[str, ...]  # those that are there


def recognize(
    stem: str, suffixes: Suffixes, tensors: Mapping[str, TensorEntry], with_input_scale: bool = False
) -> StoredMatrix:
    """The form of the matrix `stem`, by the tensors that are there; dense if there are none. `with_input_scale`: of
    NVFP4 its input scale is a part.

    A part that is missing beside others keeps its name here, so that the error can tell it.
    """
    activation_scales = tuple(
        stem + suffix for suffix in suffixes.activation_scales if stem + suffix in tensors
    )
    nvfp4_names = {part: stem + suffix for part, suffix in suffixes.nvfp4.items()}
    if any(nvfp4_names.get(part) in tensors for part in (Part.PACKED, Part.GLOBAL_SCALE)):
        if with_input_scale:
            name = stem + NVFP4_INPUT_SCALE
            nvfp4_names[Part.INPUT_SCALE] = name
            activation_scales = tuple(other for other in activation_scales if other != name)
        return StoredMatrix(Form.NVFP4, nvfp4_names, activation_scales)
    weight_name = stem + suffixes.weight
    fp8_scale = next((stem + suffix for suffix in suffixes.fp8_scales if stem + suffix in tensors), None)
    weight = tensors.get(weight_name)
    if fp8_scale is not None or (weight is not None and weight.dtype == "F8_E4M3"):
        scale_name = fp8_scale or stem + suffixes.fp8_scales[0]
        return StoredMatrix(Form.FP8, {Part.WEIGHT: weight_name, Part.SCALE: scale_name}, activation_scales)
    return StoredMatrix(Form.DENSE, {Part.WEIGHT: weight_name}, activation_scales)


def part_shapes(
    form: Form, shape: tuple[int, ...], with_input_scale: bool = False
) -> dict[Part, tuple[int, ...]]:
    """The shapes of the parts of a matrix [..., N, K] (or of a vector, which is dense)."""
    if form is Form.DENSE:
        return {Part.WEIGHT: shape}
    if form is Form.FP8:
        return {Part.WEIGHT: shape, Part.SCALE: shape[:-2]}
    columns = shape[-1]
    return {
        Part.PACKED: (*shape[:-1], columns // 2),
        Part.SCALE: (*shape[:-1], columns // NVFP4_GROUP),
        Part.GLOBAL_SCALE: shape[:-2],
        **({Part.INPUT_SCALE: shape[:-2]} if with_input_scale else {}),
    }


def is_scalar_part(form: Form, part: Part) -> bool:
    """Whether a matrix has one number of this part."""
    return part in (Part.GLOBAL_SCALE, Part.INPUT_SCALE) or (form is Form.FP8 and part is Part.SCALE)
