"""What mixes tokens without attention: the gated delta rule, a short convolution,
or the state spaces of Mamba.
"""

from __future__ import annotations

from dataclasses import dataclass

DELTA_CHUNK_TOKENS = 64
"""Positions that the gated delta rule takes together."""
SCAN_BLOCK_TOKENS = 2048
"""Positions whose last state the kernel of Mamba 1 keeps (mamba-ssm 2.3.2
csrc/selective_scan/selective_scan.cpp).
"""


@dataclass(frozen=True, slots=True)
class GatedDeltaSpec:
    """A layer that keeps a state for each head in place of keys and values, updated by the gated delta rule.

    ``key_heads`` queries and keys of ``key_dim`` features serve ``value_heads`` values of ``value_dim``.  A
    convolution of ``kernel`` positions runs over all three first.  ``fused_inputs``: query, key, value and
    gate are one product, whose parts are joined again for the convolution (Qwen3-Next).
    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    kernel: int
    fused_inputs: bool = False

    @property
    def k_width(self) -> int:
        """Features of all keys, and of all queries."""
        return self.key_heads * self.key_dim

    @property
    def v_width(self) -> int:
        """Features of all values."""
        return self.value_heads * self.value_dim

    @property
    def conv_width(self) -> int:
        """Features that the convolution runs over."""
        return 2 * self.k_width + self.v_width

    @property
    def macs_per_token(self) -> int:
        """Multiply-accumulates of the rule: products within chunks, and with the state."""
        within = DELTA_CHUNK_TOKENS * (3 * self.key_dim + 2 * self.value_dim)
        return self.value_heads * (within + 3 * self.key_dim * self.value_dim)


@dataclass(frozen=True, slots=True)
class ShortConvSpec:
    """A convolution of ``kernel`` positions over ``width`` features,
    with a gate before it and one behind (LFM2).
    """

    width: int
    kernel: int
    bias: bool = False

    @property
    def macs_per_token(self) -> int:
        """Multiply-accumulates of the convolution."""
        return self.width * self.kernel


@dataclass(frozen=True, slots=True)
class Mamba2Spec:
    """A layer that keeps a state of ``state`` numbers for each feature of its ``heads``,
    by chunks of ``chunk`` positions.

    B and C, which write and read the state, are shared by the heads of each of ``groups``.  A convolution of
    ``kernel`` positions runs over values, B and C first.  ``conv_bias``: of that convolution.  ``normed``:
    behind the scan stands a gated norm, not a gate alone.  ``scaled``: input and product of the input
    projection are multiplied by numbers (Falcon-H1).
    """

    heads: int
    head_dim: int
    groups: int
    state: int
    kernel: int
    chunk: int
    conv_bias: bool = True
    normed: bool = True
    scaled: bool = False

    @property
    def width(self) -> int:
        """Features of all heads."""
        return self.heads * self.head_dim

    @property
    def conv_width(self) -> int:
        """Features that the convolution runs over."""
        return self.width + 2 * self.groups * self.state

    @property
    def joined_width(self) -> int:
        """Features of the input projection: gate, what is convolved, and a step for each head."""
        return self.width + self.conv_width + self.heads

    @property
    def param_count(self) -> int:
        """Parameters that are neither matrix nor norm: the convolution, and for each head its decay,
        step and what skips it.
        """
        return self.conv_width * (self.kernel + int(self.conv_bias)) + 3 * self.heads

    @property
    def macs_per_token(self) -> int:
        """Multiply-accumulates: scores and their products within chunks, and those with the state."""
        within = self.chunk * (self.groups * self.state + self.width)
        return within + 2 * self.width * self.state + self.conv_width * self.kernel


@dataclass(frozen=True, slots=True)
class Mamba1Spec:
    """A layer that keeps a state of ``state`` numbers for each of ``width`` features,
    written and read by B and C of a token.

    A convolution of ``kernel`` positions runs over the values first; B, C and steps of ``rank`` numbers are
    made of what it returns, each with a norm of its own.  ``fused``: without these norms, in one function
    from the convolution to the output projection.
    """

    width: int
    state: int
    rank: int
    kernel: int
    conv_bias: bool = True
    fused: bool = False

    @property
    def conv_width(self) -> int:
        """Features that the convolution runs over."""
        return self.width

    @property
    def param_count(self) -> int:
        """Parameters that are neither matrix nor norm: the convolution, A, and what skips the scan."""
        return self.width * (self.kernel + int(self.conv_bias) + self.state + 1)

    @property
    def macs_per_token(self) -> int:
        """Multiply-accumulates of the convolution, and those that update and read the state."""
        return self.width * (self.kernel + 3 * self.state)


MixerSpec = GatedDeltaSpec | ShortConvSpec | Mamba1Spec | Mamba2Spec
