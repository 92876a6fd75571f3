"""Keys of preferences that several tools hand on to TRL."""

from __future__ import annotations

from planner.configs.said_by_file import Reading
from planner.configs.shared.keys import Keys
from planner.domain.scenario import TRAINER_BATCH

OTHER_REFERENCE = "a reference that is another model is not modelled"
_PRECOMPUTE = "precompute_ref_log_probs"
_ASKS = "precompute_ref_batch_size"
_PRECOMPUTED = (
    "log-probabilities of the reference that are computed before training are modelled for DPO, and up to "
    "TRL 0.26 with adapters only"
)
ASKED_BEFORE = (
    "before training, one forward pass over the data computes the reference's log-probabilities: "
    "not in the time"
)
"""Remark about a reference that is not part of a step."""
UNPADDED = "preferences and generated completions that are padding-free are not modelled"
LIGER = "Liger's losses of preferences are not modelled"


def read_chosen_likelihood(keys: Keys, reading: Reading) -> None:
    """``cpo_alpha``: SimPO's weight of the chosen sequences' cross-entropy, which is not taken where it is 0.

    Source: trl 0.9.6, 0.12.2 and 1.16.0 cpo_trainer.py concatenated_forward; axolotl 0.5.2
    core/trainer_builder.py and 0.19.0 core/builders/rl.py hand it on for SimPO alone.

    Raises:
        InputFileError: a weight that is no number.
    """
    if keys.number("cpo_alpha") == 0 and reading.value("task") in (None, "simpo"):
        reading.switch("chosen_likelihood", False, keys.where("cpo_alpha"))


def read_precomputed(keys: Keys, reading: Reading, *, single: bool) -> None:
    """``precompute_ref_log_probs``: no second model is loaded, and no step asks the model as it was.

    ``single``: the tool loads no second model for it.  Scripts of TRL up to 0.24 hand one over in a full
    fine-tune, which then stays.
    Source: trl 0.9.6, 0.15.2 and 0.24.0 trainer/dpo_trainer.py (``ref_model`` is None with adapters), 1.16.0
    (None whatever is trained, or let go before the first step); 0.24.0 scripts/dpo.py.

    Raises:
        NotModelledError: another task, or a second model that stays.
    """
    if not keys.flag(_PRECOMPUTE):
        return
    if not single or reading.value("task") not in (None, "dpo"):
        raise keys.not_modelled(_PRECOMPUTE, _PRECOMPUTED)
    size = keys.count(_ASKS)
    if size is not None and size > (keys.count("per_device_train_batch_size") or TRAINER_BATCH):
        raise keys.not_modelled(_ASKS, "a reference that is asked in larger batches is not modelled")
    reading.switch("caches_reference", True, keys.where(_PRECOMPUTE))
    reading.remark(keys.where(_PRECOMPUTE), ASKED_BEFORE)
