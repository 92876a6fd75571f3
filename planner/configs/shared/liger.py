"""Liger's kernels as Transformers switches them on."""

from __future__ import annotations

from planner.configs.said_by_file import Reading
from planner.configs.shared.keys import Keys

# Switch of the stack -> kernel that turns it on.
_SWITCHES = {"fused_norm": "rms_norm", "fused_mlp": "swiglu"}


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
