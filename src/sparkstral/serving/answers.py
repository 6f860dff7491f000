"""Several answers to one request, as one stream of numbered events.

Owns running them side by side: they share the prompt's blocks, and the engine batches them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from sparkstral.types import OutputEvent


async def numbered(runs: Sequence[AsyncGenerator[OutputEvent, None]]) -> AsyncGenerator[tuple[int, OutputEvent], None]:
    """The events of all `runs` as they come, each with its run's number.

    An exception of one ends all of them. Closing this generator early closes every run, which aborts its request.
    """
    if len(runs) == 1:
        async with aclosing(runs[0]) as run:
            async for event in run:
                yield 0, event
        return
    queue: asyncio.Queue[tuple[int, OutputEvent] | Exception | None] = asyncio.Queue()

    async def forward(number: int, run: AsyncGenerator[OutputEvent, None]) -> None:
        try:
            async with aclosing(run):
                async for event in run:
                    queue.put_nowait((number, event))
            queue.put_nowait(None)
        except Exception as error:  # raised again where it is read
            queue.put_nowait(error)

    tasks = [asyncio.create_task(forward(number, run)) for number, run in enumerate(runs)]
    try:
        num_running = len(tasks)
        while num_running:
            item = await queue.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                num_running -= 1
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
