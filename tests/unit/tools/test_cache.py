"""Kept answers: for how long, how many, and which go first."""
# R15

from collections.abc import Hashable

from hypothesis import example, given
from hypothesis import strategies as st

from mcprl.tools.cache import ResultCache


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_time_to_live_of_zero_keeps_nothing():
    cache: ResultCache[Hashable, str] = ResultCache(0.0, clock=Clock())
    cache.put("key", "value", 1)
    assert cache.get("key") is None


KEYS = st.integers(0, 5)
STEPS = st.lists(
    st.tuples(st.just("put"), KEYS, st.integers(0, 70)) | st.tuples(st.sampled_from(["get", "pass"]), KEYS, st.just(0)),
    max_size=60,
)


@given(STEPS)
@example([("put", 0, 5), ("pass", 5, 0), ("get", 0, 0), ("pass", 1, 0), ("get", 0, 0)])  # it expires
@example([("put", 0, 5), ("put", 1, 5), ("pass", 4, 0), ("get", 0, 0), ("put", 1, 7), ("pass", 2, 0), ("get", 0, 0)])
@example([("put", 0, 20), ("put", 1, 20), ("put", 2, 20), ("get", 0, 0), ("put", 3, 20), ("get", 0, 0), ("get", 1, 0)])
@example([("put", 0, 60), ("put", 1, 61), ("get", 0, 0), ("get", 1, 0), ("put", 0, 61), ("get", 0, 0)])  # too large
def test_it_behaves_like_a_plain_list_in_order_of_use(steps):
    clock = Clock()
    cache: ResultCache[int, int] = ResultCache(3.0, max_bytes=60, clock=clock)
    expected: list[tuple[int, int, int, float]] = []  # key, value, size, when it was put; last used last
    for value, (action, key, size) in enumerate(steps):
        expected = [entry for entry in expected if entry[3] + 3.0 > clock.now]
        if action == "pass":
            clock.now += key / 2
        elif action == "get":
            found = [entry for entry in expected if entry[0] == key]
            expected = [entry for entry in expected if entry[0] != key] + found
            assert cache.get(key) == (found[0][1] if found else None)
        else:
            # A value above the limit is not kept, pushes nothing else out, and its old self is no answer either.
            added = [(key, value, size, clock.now)] if size <= 60 else []
            expected = [entry for entry in expected if entry[0] != key] + added
            while sum(entry[2] for entry in expected) > 60:
                expected.pop(0)
            cache.put(key, value, size)
            assert cache.num_bytes == sum(entry[2] for entry in expected) <= 60
