"""The queue of packets that wait; needs no root."""

from hypothesis import given
from hypothesis import strategies as st

from gradweave.lab.delay_queue import DelayQueue

TIMES = st.floats(0, 1)


@given(st.lists(TIMES), TIMES)
def test_what_is_due_comes_by_its_time_and_no_earlier(times, now):
    queue: DelayQueue[int] = DelayQueue()
    for number, due in enumerate(times):
        queue.push(due, number)
    order = sorted(range(len(times)), key=lambda number: (times[number], number))
    ready = [number for number in order if times[number] <= now]
    assert list(queue.due(now)) == ready
    assert len(queue) == len(times) - len(ready)
    assert queue.next_s == (times[order[len(ready)]] if len(queue) else None)
    assert list(queue.due(2.0)) == order[len(ready) :]


@given(st.lists(st.tuples(st.integers(0, 2), st.floats(0, 0.01)), max_size=50))
def test_packets_of_one_link_keep_their_order(arrivals):
    latency_s, queue, now = (0.0, 0.005, 0.02), DelayQueue[tuple[int, int]](), 0.0
    for number, (link, gap) in enumerate(arrivals):
        now += gap
        queue.push(now + latency_s[link], (link, number))
    out = list(queue.due(now + 1))
    for link in range(3):
        numbers = [number for of, number in out if of == link]
        assert numbers == sorted(numbers)


def test_what_is_pushed_while_taking_out_is_given_out_in_its_place():
    queue: DelayQueue[str] = DelayQueue()
    queue.push(1.0, "first")
    queue.push(3.0, "third")
    out = []
    for item in queue.due(3.0):
        out.append(item)
        if item == "first":
            queue.push(2.0, "second")
    assert out == ["first", "second", "third"]
