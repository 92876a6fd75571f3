"""Keys of LLaMA-Factory that do something with Transformers 4 alone."""

from __future__ import annotations

from planner.configs.said_by_file import Reading
from planner.configs.shared.keys import Keys
from planner.configs.tools.llama_factory.llama_factory_age import is_of_0_7


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


_DEPTHS = "mixture_of_depths"


def read_depths(keys: Keys, reading: Reading, *, old: bool) -> None:
    """Mixture of depths: a router for every other layer, which takes the arguments of Transformers 4.42.

    Such a layer takes all tokens but one in its first pass and fewer in each later one, down to an eighth.
    Reentrant checkpointing runs it again as a later pass, so the layers between decide the peak, and memory
    is that of the model without routers: each router has as many parameters as the model is wide, and one.

    Source: astramind-ai/Mixture-of-depths aff9e74 (1.1.8, its last) MoD/MoD.py MoD.forward (``capacity``),
    which takes seven arguments; since transformers 4.43.0 models/llama/modeling_llama.py hands over an eighth
    (``position_embeddings``).  MoD/modeling/automodeling.py imports TRANSFORMERS_CACHE, which 5 has not.
    llamafactory 0.7.1 model/patcher.py: ``use_reentrant`` is true.

    Raises:
        UsageError: with the Transformers of LLaMA-Factory 0.9.5, and with that of August 2024 and later where
            a Llama is converted.
        NotModelledError: with an older one, where the layers between do not decide alone.
    """
    kind = keys.get(_DEPTHS)
    if kind in (None, False):
        return
    llama = kind == "convert" and "llama" in str(keys.get("model_name_or_path") or "").lower()
    if old and not llama:
        raise keys.not_modelled(_DEPTHS, "mixture of depths is modelled for a Llama that is converted")
    if old and is_of_0_7(keys, reading):
        _count_whole_layers(keys, reading)
        return
    what = (
        "stops in its first step with Transformers 4.43 and later"
        if old
        else "cannot be imported beside Transformers 5, which LLaMA-Factory 0.9.5 runs"
    )
    raise keys.stops(_DEPTHS, f"mixture-of-depth 1.1.8 {what}: leave it out")


def _count_whole_layers(keys: Keys, reading: Reading) -> None:
    """Raises: NotModelledError where not each layer is run again whole, by itself, on every GPU."""
    apart = reading.value("checkpoint_reentrant") is False or reading.value("offload") not in (None, "none")
    if reading.value("gradient_checkpointing") is False or apart:
        raise keys.not_modelled(_DEPTHS, "mixture of depths is modelled with reentrant checkpointing only")
    if keys.text("finetuning_type") != "full" or reading.sharding.gathers_weights:
        raise keys.not_modelled(
            _DEPTHS, "mixture of depths is modelled for full fine-tuning with whole weights on each GPU"
        )
    reading.remark(
        keys.where(_DEPTHS),
        "memory is that of the layers without a router; time is counted without it, so it is too long: "
        "every other layer takes ever fewer tokens, down to an eighth",
    )
