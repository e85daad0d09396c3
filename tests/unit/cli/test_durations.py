"""How durations are written."""

from __future__ import annotations

import pytest

from mcprl.cli.printing import duration


@pytest.mark.parametrize(
    ("seconds", "words"), [(0, "0s"), (59.6, "1m00s"), (570, "9m30s"), (3600, "1h00m"), (7512, "2h05m"), (9e4, "1d01h")]
)
def test_a_duration_has_its_two_largest_units(seconds, words):
    assert duration(seconds) == words
