"""Several answers to one request, as one stream of numbered events.

Owns running them side by side: they share the prompt's blocks, and the engine batches them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from sparkstral.types import Failed, OutputEvent

MAX_UNREAD_EVENTS = 64  # of all answers together: while nobody reads, the answers wait


async def numbered(runs: Sequence[AsyncGenerator[OutputEvent, None]]) -> AsyncGenerator[tuple[int, OutputEvent], None]:
    """The events of all `runs` as they come, each with its run's number.

    An exception of one ends all of them, and so does a Failed, which is then the last event. Closing this generator
    early closes every run, which aborts its request.
    """
    if len(runs) == 1:
        async with aclosing(runs[0]) as run:
            async for event in run:
                yield 0, event
        return
    queue: asyncio.Queue[tuple[int, OutputEvent] | Exception | None] = asyncio.Queue(MAX_UNREAD_EVENTS)

    async def forward(number: int, run: AsyncGenerator[OutputEvent, None]) -> None:
        try:
            async with aclosing(run):
                async for event in run:
                    await queue.put((number, event))
            await queue.put(None)
        except Exception as error:  # raised again where it is read
            await queue.put(error)

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
                if isinstance(item[1], Failed):
                    return
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
