"""The order of the cases of a campaign."""

from __future__ import annotations

from measure.campaign.order import in_teaching_order
from tests.measure.campaign.cases import case


def test_new_methods_and_models_come_before_more_of_the_same() -> None:
    """After one case the next differs in model and method; repeats come when everything was seen once."""
    cases = [
        case(),
        case(1),
        case(seq=128),
        case(model="b"),
        case(method="full"),
        case(model="b", method="full", seq=256),
    ]
    ordered = in_teaching_order(cases)
    assert ordered[0] == cases[0]
    assert ordered[1] == cases[5]
    assert ordered[-1] == cases[1]
    assert sorted(map(id, ordered)) == sorted(map(id, cases))
