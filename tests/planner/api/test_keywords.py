"""Keywords in Python's own types, as the intake and a search take flags."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from planner.api.keywords import job_flags, path_text, search_flags, text_of
from planner.errors import UnknownNameError, UsageError
from planner.units import GIB


def test_values_lose_the_types_of_other_libraries() -> None:
    """A path is text, a whole number of NumPy an ``int``; what is ``None`` was not given."""
    found = job_flags({"model": Path("a") / "b", "seq": np.int64(512), "epochs": 0.5, "dora": None}, ())
    assert found == {"model": str(Path("a") / "b"), "seq": 512, "epochs": 0.5}
    assert type(found["seq"]) is int


def test_a_whole_number_of_a_size_is_in_bytes() -> None:
    """Text keeps the unit that it has."""
    assert job_flags({"gpu_memory": 24 * GIB, "host_memory": "80GB"}, ()) == {
        "gpu_memory": f"{24 * 2**30}B",
        "host_memory": "80GB",
    }


def test_a_search_takes_lists_as_choices() -> None:
    """With commas as they would be typed; one choice that is several names has semicolons."""
    given = {"gpu": ["4090", "h100"], "seq": (512, 1024), "lora_targets": ["q_proj", "v_proj"]}
    assert search_flags(given, ()) == {
        "gpu": "4090,h100",
        "seq": "512,1024",
        "lora_targets": "q_proj;v_proj",
    }
    assert search_flags({"seq": 512, "dora": False, "price": [0.5, 2]}, ()) == {
        "seq": "512",
        "dora": False,
        "price": "0.5,2",
    }


def test_an_unknown_keyword_names_the_nearest() -> None:
    """Those of the function itself are among them."""
    with pytest.raises(UnknownNameError, match="model"):
        job_flags({"modle": "7b"}, ())
    with pytest.raises(UnknownNameError, match="calibration"):
        search_flags({"calibraton": "x"}, ("calibration",))


def test_what_is_no_number_or_text_is_refused() -> None:
    """By the name of the keyword, inside a list as well."""
    with pytest.raises(UsageError, match="seq must be text, a number, true or false"):
        job_flags({"seq": {"a": 1}}, ())
    with pytest.raises(UsageError, match="batch must be text"):
        search_flags({"batch": [1, None]}, ())


def test_texts_of_numbers_and_paths() -> None:
    """Nothing stays nothing."""
    assert (text_of(0.9), text_of(0), text_of(None)) == ("0.9", "0", None)
    assert (path_text(Path("x")), path_text("y"), path_text(None)) == ("x", "y", None)
