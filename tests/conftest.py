"""Keeps the calibrations and the terminal of whoever runs the tests out of them,
and chance out of continuous integration.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import HealthCheck, settings

# Property tests try the same examples on every machine, so that a change passes or fails by what it does.
# `make explore` draws others (`--hypothesis-profile=explore`): what it finds becomes an example of its test.
# How long examples take to draw says how busy the machine is.
ANY_SPEED = [HealthCheck.too_slow]
settings.register_profile(
    "repeatable", derandomize=True, database=None, deadline=None, suppress_health_check=ANY_SPEED
)
settings.register_profile(
    "explore", derandomize=False, print_blob=True, deadline=None, suppress_health_check=ANY_SPEED
)
settings.load_profile("repeatable")


@pytest.fixture(scope="module", autouse=True)
def _a_terminal_of_one_width() -> Iterator[None]:
    """Tables fold their cells on a narrow terminal."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "100")
        yield


@pytest.fixture(scope="module", autouse=True)
def _no_calibrations_of_ones_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """``plan`` uses a personal calibration by itself,
    so the tests look for them in a folder that is empty.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
        yield


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Of a test with ``@pytest.mark.every(n)``, each n-th case is quick and the others are slow."""
    seen: Counter[str] = Counter()
    for item in items:
        mark = item.get_closest_marker("every")
        if mark is not None:
            test = item.nodeid.partition("[")[0]
            if seen[test] % mark.args[0]:
                item.add_marker(pytest.mark.slow)
            seen[test] += 1


def pytest_collection_finish() -> None:
    """Predictions make millions of small tuples, which are no garbage."""
    gc.set_threshold(50_000, 20, 50)


@pytest.fixture(scope="module", autouse=True)
def _garbage_of_this_module_alone() -> None:
    """Collections leave alone what libraries hold and what caches keep of earlier modules: a trace collects
    after every micro-step.
    """
    gc.collect()
    gc.freeze()
