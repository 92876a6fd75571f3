"""Campaign files, mutated: ``measure campaign --dry-run`` lists the cases or refuses the file."""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
from pathlib import Path

import pytest
from hostile.harness import assert_sound, examples
from hostile.mutations import damaged, encoded, mutated, to_toml
from hostile.seeds import CAMPAIGNS, TINY_MODEL, campaign
from hypothesis import example, given
from hypothesis import strategies as st

from measure.run.cases.case import option_names
from planner.intake.given.fields import REQUEST_FIELDS

KEYS = (*REQUEST_FIELDS, *option_names(), "repeat", "memory_limit", "grid", "case", "defaults", "title")

pytestmark = pytest.mark.skipif(
    any(
        importlib.util.find_spec(name) is None
        for name in ("torch", "transformers", "peft", "accelerate", "psutil")
    ),
    reason="a campaign needs the measure extra",
)


@st.composite
def contents(draw: st.DrawFn) -> bytes:
    """The bytes of a campaign file."""
    return draw(damaged(encoded(to_toml(draw(mutated(campaign(draw(st.sampled_from(CAMPAIGNS))), KEYS))))))


@examples(30)
@given(contents(), st.sampled_from(((), ("--force",), ("--history",), ("--share", "2/3"))))
@example(
    b'schema = 1\ntitle = "\\u001b[31mRED"\n[[case]]\nmodel = "tiny/config.json"\nmethod = '
    b'"lora"\nseq = 16\n',
    (),
)
def test_a_mutated_campaign_is_listed_or_refused(content: bytes, flags: tuple[str, ...]) -> None:
    """Whatever a campaign says, there is a list of cases or a sentence."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "campaign.toml"
        file.write_bytes(content)
        (Path(folder) / "tiny").mkdir()
        shutil.copy(TINY_MODEL, Path(folder) / "tiny")
        assert_sound(
            "measure", "campaign", str(file), "--dry-run", "--out", f"{folder}/out", *flags, files=[file]
        )
