"""The training mixture: the demo data program's conversations, rendered and packed.

Owns which conversations are drawn and how long ones are weighed; must not know the model.
"""

from __future__ import annotations

import math
import multiprocessing
import random
from multiprocessing.queues import Queue
from pathlib import Path
from queue import Empty

from sparkstral import demo
from tools.demo.packing import Mixture, PackedBatch
from tools.demo.rendering import Rendered, Renderer

SHORTEST_PASSKEY_TOKENS = 300
LONGEST_DOCUMENT_TOKENS = 15_800  # 16,384 less room for an answer
LONGEST_PASSKEY_TOKENS = 15_200
LOOK_AFTER_WORKER_S = 2.0


def mixture(tekken_path: Path, num_tokens: int, long_share: float, long_weight: float) -> Mixture:
    """Short conversations of every skill, and pass keys in filler of log-uniform length."""
    renderer = Renderer(tekken_path)
    fragments = renderer.fragments()
    longest = min(LONGEST_PASSKEY_TOKENS, num_tokens * 2 // 3)

    def short(rng: random.Random) -> Rendered:
        return renderer.render(demo.training_mix(rng, fragments))

    def long(rng: random.Random) -> Rendered:
        length = math.exp(rng.uniform(math.log(SHORTEST_PASSKEY_TOKENS), math.log(longest)))
        plants = 1 if rng.random() < 0.4 else rng.randint(2, 8)  # more questions of one text teach more
        return renderer.render(demo.passkey(rng, demo.Split.TRAIN, round(length), plants))

    return Mixture(
        short=short,
        long=long,
        num_tokens=num_tokens,
        long_share=long_share,
        long_weight=long_weight,
        max_document_tokens=min(LONGEST_DOCUMENT_TOKENS, num_tokens),
    )


def _work(
    queue: Queue[PackedBatch],
    tekken_path: Path,
    sizes: tuple[int, float, float],
    seed: int,
    first: int,
    step: int,
) -> None:
    for batch in mixture(tekken_path, *sizes).batches(seed, first, step):
        queue.put(batch)


class BatchSource:
    """Batches 0, 1, 2, … of a run, made ahead by worker processes; the order does not depend on their
    speed."""

    def __init__(
        self, tekken_path: Path, sizes: tuple[int, float, float], seed: int, num_workers: int
    ) -> None:
        """sizes: tokens in a batch, the long documents' share of them, and their weight in the loss."""
        context = multiprocessing.get_context("fork")  # so make it before CUDA is touched
        self._queues: list[Queue[PackedBatch]] = [context.Queue(maxsize=8) for _ in range(num_workers)]
        self._workers = [
            context.Process(
                target=_work, args=(queue, tekken_path, sizes, seed, first, num_workers), daemon=True
            )
            for first, queue in enumerate(self._queues)
        ]
        for worker in self._workers:
            worker.start()
        self._next = 0

    def take(self) -> PackedBatch:
        """The next batch; waits for its worker. Raises RuntimeError if that has died."""
        number = self._next % len(self._queues)
        while True:
            try:
                batch = self._queues[number].get(timeout=LOOK_AFTER_WORKER_S)
            except Empty:
                if not self._workers[number].is_alive():
                    raise RuntimeError(f"Data worker {number} died before batch {self._next}.") from None
            else:
                self._next += 1
                return batch

    def close(self) -> None:
        """End the workers."""
        for worker in self._workers:
            worker.terminate()
            worker.join()
