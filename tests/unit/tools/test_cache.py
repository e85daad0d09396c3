"""Kept answers: for how long, how many, and which go first."""
# R15

from collections.abc import Hashable

from hypothesis import given
from hypothesis import strategies as st

from mcprl.tools.cache import ResultCache


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_value_is_given_until_it_expires_and_not_after():
    clock = Clock()
    cache: ResultCache[Hashable, str] = ResultCache(10.0, clock=clock)
    cache.put("key", "value", 5)
    clock.now = 9.999
    assert cache.get("key") == "value"
    clock.now = 10.0
    assert cache.get("key") is None


def test_reading_does_not_make_a_value_younger_and_putting_it_again_does():
    clock = Clock()
    cache: ResultCache[Hashable, str] = ResultCache(10.0, clock=clock)
    cache.put("read", "old", 5)
    cache.put("renewed", "old", 5)
    clock.now = 6.0
    cache.get("read")
    cache.put("renewed", "new", 7)
    clock.now = 12.0
    assert cache.get("read") is None
    assert cache.get("renewed") == "new"
    assert cache.num_bytes == 7


def test_expired_values_free_their_memory_without_being_asked_for():
    clock = Clock()
    cache: ResultCache[Hashable, str] = ResultCache(10.0, clock=clock)
    for number in range(100):
        cache.put(number, "value", 5)
    clock.now = 10.0
    cache.put("another", "value", 3)
    assert cache.num_bytes == 3


def test_the_value_not_used_for_longest_goes_first():
    cache: ResultCache[Hashable, str] = ResultCache(10.0, max_bytes=30, clock=Clock())
    for name in ("a", "b", "c"):
        cache.put(name, name, 10)
    cache.get("a")
    cache.put("d", "d", 10)
    assert [cache.get(name) for name in ("a", "b", "c", "d")] == ["a", None, "c", "d"]


def test_a_value_above_the_limit_is_not_kept_and_pushes_nothing_else_out():
    cache: ResultCache[Hashable, str] = ResultCache(10.0, max_bytes=30, clock=Clock())
    cache.put("small", "small", 30)
    cache.put("large", "large", 31)
    assert cache.get("large") is None
    assert cache.get("small") == "small"


def test_a_value_that_grew_above_the_limit_is_not_answered_with_its_old_self():
    cache: ResultCache[Hashable, str] = ResultCache(10.0, max_bytes=30, clock=Clock())
    cache.put("key", "old", 10)
    cache.put("key", "new", 31)
    assert cache.get("key") is None
    assert cache.num_bytes == 0


def test_a_time_to_live_of_zero_keeps_nothing():
    cache: ResultCache[Hashable, str] = ResultCache(0.0, clock=Clock())
    cache.put("key", "value", 1)
    assert cache.get("key") is None


KEYS = st.integers(0, 5)
STEPS = st.lists(
    st.tuples(st.just("put"), KEYS, st.integers(0, 40)) | st.tuples(st.sampled_from(["get", "pass"]), KEYS, st.just(0)),
    max_size=60,
)


@given(STEPS)
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
            expected = [entry for entry in expected if entry[0] != key] + [(key, value, size, clock.now)]
            while sum(entry[2] for entry in expected) > 60:
                expected.pop(0)
            cache.put(key, value, size)
            assert cache.num_bytes == sum(entry[2] for entry in expected) <= 60
