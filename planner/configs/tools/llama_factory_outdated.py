"""Keys of LLaMA-Factory that did something with Transformers 4, and do not with Transformers 5."""

from __future__ import annotations

from planner.configs.reading import Reading
from planner.configs.shared.keys import Keys
from planner.errors import UsageError


def read_fp8(keys: Keys, reading: Reading) -> None:
    """``fp8``: an environment variable that Transformers 5 does not ask, as it hands Accelerate its own
    precision; only for Transformer Engine is Accelerate patched.

    Source: llamafactory 0.9.5 train/fp8_utils.py configure_fp8_environment, train/sft/trainer.py;
    transformers 5.6.0 trainer.py create_accelerator_and_postprocess (``mixed_precision``), training_args.py;
    accelerate 1.15 state.py AcceleratorState.

    Raises:
        NotModelledError: Transformer Engine computes in fp8.
    """
    if not keys.flag("fp8"):
        return
    if keys.text("fp8_backend") == "te":
        raise keys.not_modelled("fp8_backend", "training in fp8 by Transformer Engine is not modelled")
    reading.remark(
        keys.where("fp8"),
        "has no effect with Transformers 5, which hands Accelerate its own precision; with Transformers 4 "
        "torchao computes in fp8, which is not counted",
    )


def refuse_depths(keys: Keys, *, old: bool) -> None:
    """Mixture of depths: a router for every other layer.

    Source: astramind-ai/Mixture-of-depths aff9e74 (1.1.8, its last) MoD/modeling/automodeling.py, which
    imports TRANSFORMERS_CACHE, and MoD/MoD.py, whose layers take positions of Transformers 4.

    Raises:
        UsageError: with the Transformers of LLaMA-Factory 0.9.5.
        NotModelledError: with an older one.
    """
    if keys.get("mixture_of_depths") in (None, False):
        return
    if old:
        raise keys.not_modelled("mixture_of_depths", "mixture of depths is not modelled")
    raise UsageError(
        f"{keys.where('mixture_of_depths')}: mixture-of-depth 1.1.8 cannot be imported beside Transformers "
        "5, which LLaMA-Factory 0.9.5 runs; with Transformers 4 it is not modelled: leave it out"
    )
