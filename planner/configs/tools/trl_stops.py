"""Files at which today's TRL stops before or in its first step."""

from __future__ import annotations

from planner.configs.said_by_file import Reading, Stop
from planner.configs.shared.keys import Keys

_WITHOUT_NUM_EXPERTS = ("granitemoe", "granitemoehybrid", "phimoe")


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


def stop_at_router_loss(keys: Keys, reading: Reading) -> None:
    """The routers' loss, on unless its weight is 0, asks for a number of experts by a name that these classes
    do not have; dense models are among them.

    Source: trl 1.16.0 trainer/utils.py add_fused_lm_head, sft_trainer.py, dpo_trainer.py, kto_trainer.py and
    grpo_trainer.py (``aux_loss_enabled``); transformers 5.23 models/*/configuration_*.py.
    """
    weight = keys.number("router_aux_loss_coef")
    if weight == 0:
        return
    why = "TRL 1.16.0 stops at the routers' loss of such a model unless its config.json turns it off"
    sentence = f"{keys.where('router_aux_loss_coef')}: {why}: say router_aux_loss_coef: 0"
    reading.stops.append(Stop(lambda model: model.architecture in _WITHOUT_NUM_EXPERTS, sentence))
