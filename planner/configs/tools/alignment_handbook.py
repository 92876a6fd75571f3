"""Recipes of the alignment-handbook, told by its key ``dataset_mixer``: what its scripts decide in place of
the file.

Later recipes have ``dataset_mixture`` (19f0345 of 2025-07-24), whose scripts/sft.py leaves all to SFTConfig.
"""

from __future__ import annotations

from planner.configs.said_by_file import Reading
from planner.configs.shared.age import first_held
from planner.configs.shared.keys import Keys
from planner.words import words

_MIXER = "dataset_mixer"
_SCRIPTS = "alignment-handbook of 2023-11 to 2025-07, scripts/run_sft.py and run_cpt.py"
# Fields of SFTConfig that trl 0.12.2 has not, the last one whose trainer takes ``packing`` from a script.
_LATER = words(
    "max_length padding_free packing_strategy completion_only_loss assistant_only_loss eos_token pad_token"
)


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
