"""The bound of an encoder's batch holds, and is not far off."""

from __future__ import annotations

import gc

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sparkstral.checkpoint.load import load
from sparkstral.engine.build_vision import build_encoder
from sparkstral.memory.vision_workspace import VisionWorkspace, vision_batch_bytes
from sparkstral.model.config import VisionConfig
from tests.support.tiny_checkpoint import TINY, native_tensors, write_native

REAL = VisionConfig(1024, 24, 16, 4096, 1540, 1e4)


class Peak(TorchDispatchMode):
    """The most bytes that tensors which came to be in it held at once."""

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[int, tuple[object, int]] = {}
        self.peak = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                self.live[storage._cdata] = (torch.multiprocessing.reductions.StorageWeakRef(storage), storage.nbytes())
        self.live = {key: entry for key, entry in self.live.items() if not entry[0].expired()}
        self.peak = max(self.peak, sum(num_bytes for _, num_bytes in self.live.values()))
        return out


def test_the_bound_of_a_batch_holds(tmp_path) -> None:
    write_native(tmp_path, TINY, tensors=native_tensors(TINY, with_vision=True), with_vision=True)
    config, weights = load(tmp_path)
    bound = vision_batch_bytes(config, 4)
    encoder = build_encoder(config, weights.vision, torch.device("cpu"), torch.float32)
    assert encoder is not None
    gc.collect()
    with Peak() as peak:
        encoder.encode_largest()
    assert 0.3 * bound < peak.peak < bound


def test_the_real_models_share_of_the_plan() -> None:
    workspace = VisionWorkspace(REAL, 4096, 2)
    assert workspace.line().num_bytes == 12_100 * 4096 * 2
    assert 0.3 * 2**30 < workspace.batch_bytes() < 2**30
