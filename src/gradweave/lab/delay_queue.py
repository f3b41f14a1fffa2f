"""A queue of items, each of which waits until its time."""

import heapq
from collections.abc import Iterator
from typing import Generic, TypeVar

Item = TypeVar("Item")


class DelayQueue(Generic[Item]):
    """Returns items at the times when they are due; items with equal times keep their order.

    It is a heap: with n waiting items, an item costs O(log n). So links of different latencies can
    share one queue, and packets with equal latency keep their order.
    >>> queue = DelayQueue()
    >>> queue.push(0.3, "late")
    >>> queue.push(0.1, "early")
    >>> list(queue.due(at_s=0.2)), queue.next_s
    (['early'], 0.3)
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Item]] = []
        self._pushed = 0

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def next_s(self) -> float | None:
        """When the next item is due, or None if the queue is empty."""
        return self._heap[0][0] if self._heap else None

    def push(self, due_s: float, item: Item) -> None:
        """Adds an item that is due at a time."""
        heapq.heappush(self._heap, (due_s, self._pushed, item))
        self._pushed += 1

    def due(self, at_s: float) -> Iterator[Item]:
        """Removes and yields, in order, the items that are due by a time."""
        while self._heap and self._heap[0][0] <= at_s:
            yield heapq.heappop(self._heap)[2]
