"""How long samples are in a file of TRL, and whether several fill a row."""

from __future__ import annotations

from planner.configs.said_by_file import Reading
from planner.configs.shared.age import first_held
from planner.configs.shared.kernels import join_samples
from planner.configs.shared.keys import Keys
from planner.configs.tools.trl_age import OLD, OLDEST
from planner.words import words

_MIXER = "dataset_mixer"
_SCRIPTS = "alignment-handbook of 2023-11 to 2025-07, scripts/run_sft.py and run_cpt.py"
# Fields of SFTConfig that trl 0.12.2 has not, the last one whose trainer takes ``packing`` from a script.
_LATER = words(
    "max_length padding_free packing_strategy completion_only_loss assistant_only_loss eos_token pad_token"
)


def refuse_unkept_length(keys: Keys, reading: Reading) -> None:
    """A length beside ``padding_free``, which nothing keeps without packing; trainers of preferences pad all
    the same.

    Source: trl 1.16.0 trainer/sft_trainer.py:999; 0.24.0 takes both.

    Raises:
        UsageError: supervised fine-tuning with both.
    """
    is_cut = not keys.holds("max_length") or keys.get("max_length") is not None
    if is_cut and reading.value("task") in (None, "sft"):
        why = "TRL 1.16.0 stops without packing: true or max_length: null (with --seq)"
        raise keys.stops("padding_free", f"{why}")


def read_packing(keys: Keys, reading: Reading) -> None:
    """Packs where a file says nothing of them: the scripts hand packing=True to the trainer, in place of
    SFTConfig's false.

    A file that says false, or has a key of later versions, is for a script of its own.
    Source: trl 0.12.2 trainer/sft_trainer.py:211-215; that of 0.13.0 takes no ``packing``.
    """
    if not keys.has(_MIXER) or first_held(keys, _LATER) is not None:
        return
    if keys.flag("packing") is False:
        reading.remark(keys.where("packing"), f"{_SCRIPTS} pack all the same: with them say --padding packed")
        return
    reading.default("padding", "packed", f"{_SCRIPTS}: packing=True")


def _read_lengths(keys: Keys, reading: Reading, old: str = "") -> None:
    """The length; ``old``: the stack of an older TRL where the file trains from preferences,
    which had another default.
    """
    reading.take(keys, {"max_length": "seq", "max_seq_length": "seq"})
    if keys.holds("max_length") and reading.value("seq") is None:
        reading.needs["seq"] = (
            f"{keys.where('max_length')} is null, so the longest sample decides: say its length with --seq"
        )
    elif old == OLDEST and reading.value("seq") is None:
        _read_old_length(keys, reading)
    else:
        reading.default("seq", 1024, "trl 1.16.0 trainer/sft_config.py: max_length")
    if keys.flag("packing"):
        reading.say("padding", "packed", keys.where("packing"))
        # Beside padding_free rows of it have positions that begin anew, too (trl 1.16.0 sft_trainer.py:916).
        if keys.text("packing_strategy") == "wrapped" and not keys.flag("padding_free"):
            reading.switch("packed_mask", "none", keys.where("packing_strategy"))
        keys.skip(("padding_free",))
    elif keys.flag("padding_free"):
        if reading.value("stack") not in OLD:
            refuse_unkept_length(keys, reading)
        # Attention that is not FlashAttention gets a mask of all pairs of their tokens.
        join_samples(reading, keys.where("padding_free"), reading.value("attention"))
    else:
        read_packing(keys, reading)
    keys.skip(("packing_strategy",))


def _read_old_length(keys: Keys, reading: Reading) -> None:
    """The length of pairs where a file says none.

    Recipes of the alignment-handbook run with TRL 0.9.6 to 0.12 (its setup.py of 2024-07 to 2025-04).
    """
    ages = "max_length is 512 up to TRL 0.11, nothing is cut in 0.12 and 0.13, and it is 1,024 since"
    if not keys.has("dataset_mixer"):
        reading.needs["seq"] = f"{keys.path}: {ages} where nothing is said: say --seq"
        return
    place = "trl 0.9.6 to 0.11.4 trainer/dpo_trainer.py, orpo_trainer.py: max_length where it is None"
    reading.default("seq", 512, place)
    reading.remark(keys.where("dataset_mixer"), f"counted with TRL up to 0.11: {ages}; --seq says another")
