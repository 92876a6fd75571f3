"""What may differ between a stored example and the program now, and what may not."""

from __future__ import annotations

import pytest
from alike import differences

SCREEN = """\
FITS: needs 6.65 of 23.52 GiB per GPU; chance to fit > 99 %
Step: 982 ms (90 % interval 955 ms to 1.06 s); 1,309 tokens/s on 2026-11-24
wwwwwwwwwwwwwwcccaaklxx.........................................................
  --batch 4  instead of batch=1                        +3.87 GiB  x 1.19    fits
model FLOP utilisation 30.5 %
"""


@pytest.mark.parametrize(
    ("said", "now"),
    [
        ("6.65", "6.80"),
        ("1,309", "1,290"),
        ("982 ms", "1.01 s"),
        ("x 1.19", "x 1.20"),
        ("30.5 %", "31.4 %"),
        ("2026-11-24", "2027-01-02"),
        ("cccaaklxx.", "cccaaaklx."),
        ("                        +3.87", "     +3.90"),
    ],
)
def test_a_number_that_moved_a_little_is_still_true(said: str, now: str) -> None:
    """3 %, a last digit, a point, another unit of time, another day, a cell of the bar, another layout."""
    assert said in SCREEN
    assert differences(SCREEN, SCREEN.replace(said, now)) == []


@pytest.mark.parametrize(
    ("said", "now"),
    [
        ("FITS", "UNCERTAIN"),
        ("6.65", "6.90"),
        ("30.5 %", "31.6 %"),
        ("982 ms", "982 s"),
        ("1,309", "1,209"),
        ("+3.87", "-3.87"),
        ("--batch 4", "--batch 5"),
        ("batch=1", "batch=2"),
        ("> 99 %", "99 %"),
        ("23.52 GiB", "23.52 MiB"),
        ("wwwwcccaa", "wwwwwwwaa"),
        ("   fits", "   uncertain"),
    ],
)
def test_what_is_no_longer_true_is_told(said: str, now: str) -> None:
    """Another verdict, setting, sign or unit, and a number that is another one."""
    assert said in SCREEN
    assert differences(SCREEN, SCREEN.replace(said, now)) != []


@pytest.mark.parametrize(
    ("said", "now"), [("rtx4090", "rtx4091"), ("nf4", "nf5"), ("r=8", "r=9"), ("@5", "@6")]
)
def test_digits_of_a_name_belong_to_the_name(said: str, now: str) -> None:
    """Cards, formats and versions are no quantities, however near their digits are."""
    text = "llama-2-7b, qlora nf4 r=8, 1 x rtx4090, hf-trainer@5"
    assert differences(text, text.replace(said, now)) != []
