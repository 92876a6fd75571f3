"""What one file says: the first word about a field holds, another is a contradiction."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from planner.configs.said_by_file import Reading, Said
from planner.configs.shared.keys import Keys
from planner.errors import InputFileError, NotModelledError, UsageError

FILE = Path("train.yaml")


def reading_of(**said: Any) -> Reading:
    """A reading of keys that have the names of fields."""
    keys, reading = Keys(FILE, said), Reading(FILE, "tool 1.0")
    reading.take(keys, {name: name for name in said})
    return reading


def test_the_first_key_holds_and_another_value_is_refused() -> None:
    """The same value twice is no contradiction; a key that is null says nothing."""
    reading = reading_of(seq=512, batch=None)
    reading.say("seq", 512, "other.yaml:max_len", "read later")
    assert reading.said == {"seq": Said(512, "train.yaml:seq")}
    with pytest.raises(UsageError, match=r"other.yaml:max_len: says seq 1024, but train.yaml:seq says 512"):
        reading.say("seq", 1024, "other.yaml:max_len")


def test_a_default_stands_where_no_key_does() -> None:
    """Its origin is the tool, its note the place in the tool's code."""
    reading = reading_of(seq=512)
    reading.default("seq", 1024, "args.py:1")
    reading.default("batch", 8, "args.py:2")
    assert reading.value("seq") == 512
    assert reading.said["batch"] == Said(8, "default of tool 1.0", "args.py:2")


def test_switches_are_one_field_with_all_their_places() -> None:
    """Spelled as flags spell them; the first setting of a switch holds."""
    reading = reading_of()
    reading.switch("liger", value=True, origin="train.yaml:liger")
    reading.switch("liger", value=False, origin="launch.yaml:liger")
    reading.switch("segments", value="on", origin="launch.yaml:env")
    reading.say_switches()
    assert reading.value("switches") == ("liger=true", "segments=on")
    assert reading.said["switches"].note == "liger: train.yaml:liger; segments: launch.yaml:env"


def test_unread_keys_are_told_or_refused() -> None:
    """Unless their name may change memory, or nobody read any."""
    keys, reading = Keys(FILE, {"seq": 1, "note": "x"}), reading_of()
    with pytest.raises(InputFileError, match="none of its keys is known"):
        reading.finish(keys)
    reading.take(keys, {"seq": "seq"})
    reading.finish(keys)
    assert reading.ignored == ["train.yaml:note"]
    for name in ("moe_lora", "ref_name_or_path"):
        keys = Keys(FILE, {"seq": 1, name: "x"})
        reading.take(keys, {"seq": "seq"})
        with pytest.raises(NotModelledError, match=name):
            reading.finish(keys)


def test_activations_join_what_else_goes_to_host_ram() -> None:
    """In either order; what goes to NVMe does not mix with them."""
    for first, second in (("activations", "optimizer"), ("optimizer", "activations")):
        reading = reading_of(offload=first)
        reading.say("offload", second, "other.yaml:key")
        assert reading.value("offload") == "optimizer+activations"
    with pytest.raises(NotModelledError, match="at once is not modelled"):
        reading_of(offload="activations").say("offload", "optimizer-nvme", "other.yaml:key")
