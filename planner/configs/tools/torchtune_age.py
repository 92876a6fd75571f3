"""The age of a file of torchtune, as its keys tell it, and the length of samples up to 0.2.

Source: torchtune 0.2.1 (2024-07-25) recipes/*.py, datasets/*.py; 34162c9b2 (2024-08-14), whose full
recipe has FSDP2 already.  Recipes' configs at 0.3.0, 0.4.0, 0.5.0, 0.6.1 and bd2a0fc7c (2026-04).
"""

from __future__ import annotations

from enum import IntEnum

from planner.configs.said_by_file import Reading
from planner.configs.shared.age import enter_age
from planner.configs.shared.keys import Keys

LINEAR_LOSS = "torchtune.modules.loss.LinearCrossEntropyLoss"
_UTILS = "torchtune.utils."


class Age(IntEnum):
    """The last minor version of the stack that a file is read for.

    What parts them: FSDP1 and whole logits to 0.2; norms of separate operators to 0.4, and again on the main
    branch since 2025-04; layers that are copies, each with its tables of positions, to 0.5.
    """

    TO_0_2 = 2
    TO_0_4 = 4
    TO_0_5 = 5
    TO_0_6 = 6
    MAIN = 7

    @property
    def old(self) -> bool:
        """It is of 0.2 or before."""
        return self == Age.TO_0_2


_RELEASES = {
    Age.TO_0_2: ("torchtune@0.2", "torchtune 0.2.1"),
    Age.TO_0_4: ("torchtune@0.4", "torchtune 0.3 and 0.4"),
    Age.TO_0_5: ("torchtune@0.5", "torchtune 0.5"),
    Age.TO_0_6: ("torchtune", "torchtune 0.6.1"),
    Age.MAIN: ("torchtune@2025", "torchtune main branch"),
}
_TOOL = _RELEASES[Age.TO_0_2][1]
# Tokens that a builder of data cuts each sample to, where the file does not say (datasets/*.py max_seq_len).
_LENGTHS = {"alpaca_dataset": 512, "alpaca_cleaned_dataset": 512, "slimorca_dataset": 1024}


def read_age(keys: Keys, reading: Reading, stack: str = "") -> Age:
    """The age of a file, whose stack is entered, and the other stacks that its keys fit as well.

    ``stack``: the one that it is read for, whatever its keys say.

    Raises:
        NotModelledError: of 0.2 or before, and compiled, or with units of FSDP1 that are not modelled.
    """
    ages, *sign = _ages(keys)
    age = enter_age(reading, ages, _RELEASES, stack, (sign[0], sign[1]))
    if age.old:
        _refuse_unread(keys)
    return age


def _ages(keys: Keys) -> tuple[tuple[Age, ...], str, str]:
    """The ages that a file's keys fit, the likeliest first; the place and the sentence of what tells it.

    Recipes wrote logs beside checkpoints up to 0.4, and into a folder of their own since 0.5; nearly all have
    had ``clip_grad_norm`` since 0.6, and next to none before.
    """
    component, where = _component_of(keys, "checkpointer")
    if component.startswith(_UTILS):
        return (Age.TO_0_2,), where, f"{_UTILS} has had no class for checkpoints since torchtune 0.3"
    component, where = _component_of(keys, "loss")
    if component == LINEAR_LOSS:
        return (Age.MAIN,), where, "no release of torchtune has this loss, which its main branch has"
    log = keys.part("metric_logger")
    folder = None if log is None else log.as_written("log_dir")
    if keys.holds("clip_grad_norm") or log is None:
        return (Age.TO_0_6,), "", ""
    log.skip_rest()
    if folder == "${output_dir}":
        text = "recipes of torchtune up to 0.4 write logs there"
        return (Age.TO_0_4, Age.TO_0_6), log.where("log_dir"), text
    text = "recipes have had clip_grad_norm since torchtune 0.6"
    return (Age.TO_0_5, Age.TO_0_6), str(keys.path), text


def _component_of(keys: Keys, name: str) -> tuple[str, str]:
    """The class or function that a table names, and its place."""
    part = keys.part(name)
    if part is None:
        return "", ""
    component = part.text("_component_") or ""
    if name == "checkpointer":
        part.skip_rest()
    return component, part.where("_component_")


def _refuse_unread(keys: Keys) -> None:
    """Raises: NotModelledError: compiled, or with units of FSDP1 that are not modelled."""
    if keys.flag("compile"):
        raise keys.not_modelled("compile", "torch.compile of torchtune up to 0.2 is not modelled")
    if keys.flag("memory_efficient_fsdp_wrap"):
        raise keys.not_modelled(
            "memory_efficient_fsdp_wrap", "table and head as units of FSDP1 by themselves are not modelled"
        )
    strategy = keys.text("fsdp_sharding_strategy")
    if strategy not in (None, "FULL_SHARD"):
        raise keys.not_modelled("fsdp_sharding_strategy", f"{strategy} is not modelled; FULL_SHARD is")


def read_length(data: Keys, reading: Reading) -> None:
    """The tokens that samples are cut to."""
    reading.take(data, {"max_seq_len": "seq"})
    name = (data.text("_component_") or "").rpartition(".")[2]
    if name in _LENGTHS and not data.has("max_seq_len"):
        reading.default("seq", _LENGTHS[name], f"{_TOOL} datasets: max_seq_len of {name}")
