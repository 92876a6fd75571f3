"""Keys of LLaMA-Factory that did something with Transformers 4, and do not with Transformers 5."""

from __future__ import annotations

from planner.configs.said_by_file import Reading
from planner.configs.shared.keys import Keys
from planner.errors import REFUSED_BY_TOOL, UsageError


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
    """Mixture of depths: a router for every other layer, which takes the arguments of Transformers 4.42.

    Source: astramind-ai/Mixture-of-depths aff9e74 (1.1.8, its last) MoD/MoD.py MoD.forward, which takes seven
    arguments; since transformers 4.43.0 models/llama/modeling_llama.py hands over an eighth
    (``position_embeddings``).  MoD/modeling/automodeling.py imports TRANSFORMERS_CACHE, which 5 has not.

    Raises:
        UsageError: with the Transformers of LLaMA-Factory 0.9.5, and with that of August 2024 and later where
            a Llama is converted.
        NotModelledError: with an older one.
    """
    kind = keys.get("mixture_of_depths")
    if kind in (None, False):
        return
    llama = kind == "convert" and "llama" in str(keys.get("model_name_or_path") or "").lower()
    if old and (not llama or keys.has("evaluation_strategy")):
        raise keys.not_modelled("mixture_of_depths", "mixture of depths is not modelled")
    what = (
        "stops in its first step with Transformers 4.43 and later, and with older ones"
        if old
        else "cannot be imported beside Transformers 5, which LLaMA-Factory 0.9.5 runs, and with 4 it"
    )
    raise UsageError(
        f"{keys.where('mixture_of_depths')}: mixture-of-depth 1.1.8 {what} is not modelled: leave it out "
        f"[{REFUSED_BY_TOOL}]"
    )
