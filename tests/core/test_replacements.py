"""How long a slice that is lost again and again waits for the next one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tpujob_operator.core.memory import CALM_MS, Replacements

T0 = 1_790_000_000_000
_LONGEST_MS = 60_000


def test_each_replacement_waits_twice_as_long_up_to_a_minute() -> None:
    """The first comes at once; after a calm time counting begins again."""
    replacements, waits = Replacements(), []
    for _ in range(9):
        waits.append(replacements.wait_ms(T0))
        replacements = replacements.another(T0)
    assert waits == [0, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000, _LONGEST_MS, _LONGEST_MS]
    assert replacements.another(T0 + CALM_MS).count == 1


@given(st.integers(0, 10**6), st.integers(-(10**12), 10**12))
def test_no_clock_makes_a_replacement_wait_longer(count: int, later_ms: int) -> None:
    """Set back by years, it is over: a slice is never held up by a clock."""
    wait_ms = Replacements(count, T0).wait_ms(T0 + later_ms)
    assert 0 <= wait_ms <= _LONGEST_MS
    if later_ms < 0:
        assert wait_ms == 0
