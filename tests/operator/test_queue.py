"""The queue: every key once, one worker per key, delays that the earliest wins."""

import asyncio
import contextlib

import pytest

from tpujob_operator.shell.queue import KeyedQueue, QueueClosedError


async def test_keys_coalesce() -> None:
    """A key added twice before it is taken is handed out once."""
    queue: KeyedQueue[str] = KeyedQueue()
    queue.add("a")
    queue.add("b")
    queue.add("a")
    assert [await queue.get(), await queue.get()] == ["a", "b"]
    assert queue.depth == 0


async def test_key_added_while_held_comes_again() -> None:
    """A change during a pass leads to another pass, after and not beside the first."""
    queue: KeyedQueue[str] = KeyedQueue()
    queue.add("a")
    assert await queue.get() == "a"
    queue.add("a")
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.05):
            raise AssertionError(f"two workers hold {await queue.get()}")
    queue.done("a")
    assert await queue.get() == "a"


async def test_earliest_delay_wins() -> None:
    """Of several delayed requests the earliest counts, and only once."""
    queue: KeyedQueue[str] = KeyedQueue()
    loop = asyncio.get_running_loop()
    started = loop.time()
    queue.add_after("a", 30)
    queue.add_after("a", 0.05)
    queue.add_after("a", 20)
    assert await queue.get() == "a"
    assert loop.time() - started >= 0.04
    queue.done("a")
    assert queue.depth == 0


async def test_pass_cancels_the_delayed_request() -> None:
    """A pass sees everything, so a request that was to come later is dropped."""
    queue: KeyedQueue[str] = KeyedQueue()
    queue.add_after("a", 0.05)
    queue.add("a")
    assert await queue.get() == "a"
    queue.done("a")
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.15):
            raise AssertionError(f"{await queue.get()} came again")


async def test_age_is_that_of_the_oldest() -> None:
    """An empty queue has no age; a waiting key grows older."""
    queue: KeyedQueue[str] = KeyedQueue()
    assert queue.oldest_age_s == 0
    queue.add("a")
    await asyncio.sleep(0)
    assert queue.oldest_age_s > 0


async def test_closed_queue_hands_out_nothing() -> None:
    """Who waits is sent home, keys or not; those that are held can still be released."""
    queue: KeyedQueue[str] = KeyedQueue()
    queue.add("a")
    assert await queue.get() == "a"
    waiting = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    queue.close()
    queue.add("b")
    for end in (waiting, queue.get()):
        with pytest.raises(QueueClosedError):
            await end
    queue.done("a")
