"""Items that wait, each until a time of its own."""

import heapq
from collections.abc import Iterator
from typing import Generic, TypeVar

Item = TypeVar("Item")


class DelayQueue(Generic[Item]):
    """Gives items out by the times at which they are due; those of one time as they came.

    A heap: an item costs O(log n) where n wait. So links of different latencies share one queue,
    and those of one latency keep their order.

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
        """When the next item is due; None where none waits."""
        return self._heap[0][0] if self._heap else None

    def push(self, due_s: float, item: Item) -> None:
        """Keeps an item until it is due."""
        heapq.heappush(self._heap, (due_s, self._pushed, item))
        self._pushed += 1

    def due(self, at_s: float) -> Iterator[Item]:
        """Takes out, in order, what is due by a time."""
        while self._heap and self._heap[0][0] <= at_s:
            yield heapq.heappop(self._heap)[2]
