"""A tolerance as it is written."""

import pytest

from service.tolerance import parse_tolerance


@pytest.mark.parametrize(
    ("text", "share"),
    [("5%", 0.05), ("0.05", 0.05), (" 2.5 % ", 0.025), (".1", 0.1), ("0", 0.0), ("0%", 0.0), ("99.9%", 0.999)],
)
def test_a_percentage_and_a_share_are_read(text: str, share: float) -> None:
    assert parse_tolerance(text) == pytest.approx(share)


@pytest.mark.parametrize("text", ["5", "100%", "1", "-1%", "five", "", "%", "nan", "inf", "1e-2", "5%%", "٥%", "5 5"])
def test_what_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no share|double"):
        parse_tolerance(text)
