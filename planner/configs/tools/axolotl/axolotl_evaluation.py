"""What a file of Axolotl says about evaluation: how many samples at once, and how long they are."""

from __future__ import annotations

from planner.configs.said_by_file import Reading
from planner.configs.shared.keys import Keys
from planner.configs.tools.axolotl.axolotl_age import Age


def read_evaluation(keys: Keys, reading: Reading, *, age: Age) -> None:
    """As many samples at once as it trains on, unless the file says otherwise;
    none where none are held back.

    Packs are filled by the sampler of training, as large as its own, since 0.8.0; ``old``: the file is of 0.8
    or before, which up to 0.7.1 counted ``eval_batch_size``.
    Source: axolotl 0.19.0 core/trainers/base.py _create_multipack_sampler, _get_eval_sampler,
    utils/schemas/validation.py check_eval_packing, utils/data/sft.py; 0.7.1 core/trainers/base.py:405-411.

    Raises:
        NotModelledError: longer samples than those of training.
        UsageError: the best checkpoint, of which nothing says by what (axolotl 0.19.0
            utils/schemas/config.py check_save_strategy_best_requires_metric, since 2026-04).
    """
    if age.today and keys.get("save_strategy") == "best" and not keys.get("metric_for_best_model"):
        raise keys.stops(
            "save_strategy",
            "Axolotl refuses best without metric_for_best_model; say metric_for_best_model: eval_loss",
        )
    if not any(keys.get(name) for name in ("val_set_size", "test_datasets")):
        reading.said.pop("eval_batch", None)
        return
    longest = keys.count("eval_sequence_len")
    if longest is not None and longest > reading.value("seq") and keys.get("test_datasets"):
        what = "evaluation of longer samples than those of training is not modelled"
        raise keys.not_modelled("eval_sequence_len", what)
    packs = keys.flag("sample_packing") and keys.flag("eval_sample_packing") is not False and not age.old
    if packs and reading.value("eval_batch") not in (None, reading.value("batch")):
        reading.said.pop("eval_batch")
        text = "has no effect: packs of evaluation are as large as those of training"
        reading.remark(keys.where("eval_batch_size"), text)
    place = (
        "axolotl 0.19.0 utils/config/__init__.py: eval_batch_size is micro_batch_size, the same in 2023-11"
    )
    reading.default("eval_batch", reading.value("batch"), place)
