"""Attention kernels, Liger's kernels and the dtype of weights, as Transformers and TRL name them."""

from __future__ import annotations

from planner.configs.said_by_file import Reading
from planner.configs.shared.keys import Keys
from planner.domain.recipes.attention_kernels import ATTENTION_FACTS
from planner.errors import show

# attn_implementation -> ours.
ATTENTIONS = {theirs: ours for ours, facts in ATTENTION_FACTS.items() for theirs in facts.names}
DTYPES = ("bfloat16", "float16", "float32")
# How names of later generations of FlashAttention end, which need as much memory in less time.
_GENERATIONS = {"attention_3": 3, "-attn3": 3, "fa3": 3, "attention_4": 4}

# Switch of the stack -> kernel that turns it on.
_SWITCHES = {"fused_norm": "rms_norm", "fused_mlp": "swiglu"}


def read_dtype(keys: Keys, reading: Reading) -> None:
    """Enter the dtype in which the model is loaded, by its new or its old name.

    Source: transformers 5.23.0 modeling_utils.py ``from_pretrained``: ``dtype``, before 4.56 ``torch_dtype``.

    Raises:
        InputFileError: no such dtype.
    """
    for name in ("dtype", "torch_dtype"):
        dtype = keys.text(name)
        if dtype is None:
            continue
        if dtype not in ("auto", *DTYPES):
            raise keys.wrong(name, f"auto, {', '.join(DTYPES)}", dtype)
        reading.say("load_dtype", "checkpoint" if dtype == "auto" else dtype, keys.where(name))


def read_attention(keys: Keys, name: str, reading: Reading) -> None:
    """Enter the attention kernel that a key names in the words of Transformers.

    Raises:
        NotModelledError: a kernel that no formula covers.
    """
    said = keys.text(name)
    if said is None:
        return
    kernel = ATTENTIONS.get(said.removeprefix("paged|").lower())
    if kernel is None:
        raise keys.not_modelled(
            name, f"attention '{show(said)}' is not modelled; these are: {', '.join(ATTENTIONS)}"
        )
    reading.say("attention", kernel, keys.where(name))
    say_generation(said, reading, keys.where(name))


def say_generation(kernel: str, reading: Reading, origin: str) -> None:
    """Enter the generation of FlashAttention that the name of a kernel says: its time, not its memory."""
    for ending, generation in _GENERATIONS.items():
        if kernel.lower().endswith(ending):
            reading.switch("flash_generation", generation, origin)


def join_samples(reading: Reading, where: str, attention: object) -> None:
    """Attention that is not FlashAttention gets a mask of all pairs of their tokens."""
    if attention == "flash2":
        reading.remark(where, "counted as padded to the longest sample, which is more")
    else:
        reading.say("padding", "packed", where, "counted as full rows end to end, which is more")
        reading.cut_samples = "packed"


def say_liger(reading: Reading, origin: str, config: Keys | None = None, *, loss: bool = True) -> None:
    """Enter Liger's loss, norms and feed-forward activation, as Transformers turns them on together;
    ``config`` takes some out.

    ``loss``: whether the trainer leaves the loss to the model; else only layers have these kernels.

    Source: liger-kernel 0.8.5 transformers/monkey_patch.py:259-264 ``apply_liger_kernel_to_llama``: rms_norm,
    swiglu and fused_linear_cross_entropy are on by default; ops/rms_norm.py:674 and ops/swiglu.py:272 save
    their inputs only.  transformers 5.23.0 integrations/liger.py hands ``liger_kernel_config`` on as these
    arguments.
    """
    kernels = (
        {}
        if config is None
        else {name: config.flag(name) for name in ("fused_linear_cross_entropy", *_SWITCHES.values())}
    )
    if not loss:
        pass
    elif kernels.get("fused_linear_cross_entropy") is not False:
        reading.say("loss", "liger", origin)
    elif config is not None:
        reading.say("loss", "hf", config.where("fused_linear_cross_entropy"))
        if config.flag("cross_entropy"):
            say_cross_entropy(reading, config.where("cross_entropy"))
    for switch, name in _SWITCHES.items():
        if kernels.get(name) is not False:
            reading.switch(switch, "liger", origin)
    if config is not None:
        config.skip(("rope", "cross_entropy", "layer_norm", "geglu", "fused_linear_jsd"))


def say_cross_entropy(reading: Reading, origin: str) -> None:
    """Enter Liger's cross entropy in the place of torch's: it writes the gradient over the fp32 logits.

    Source: liger-kernel 0.8.1 ops/cross_entropy.py; transformers 5.16.1 loss/loss_utils.py ForCausalLMLoss.
    """
    reading.switch("loss_forward", "compute+float", origin)
    reading.switch("loss_backward", "float", origin)
