"""One attention layer: its heads, its positions, and how the modelling code goes about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

SdpaInput = Literal["grouped", "expanded", "broadcast"]
EagerScores = Literal["fp32_softmax", "fp32_biased", "fp32", "compute"]
FusedParts = Literal["split", "split_heads", "slices", "selected", "indexed", "unbound"]
RotaryForm = Literal["halves", "repeated_pairs", "crossed", "crossed_views", "complex"]
RotaryJoin = Literal["inline", "function", "forward"]
RotaryResult = Literal["wider", "input", "fp32", "floated"]
Pieces = Literal["none", "window", "image"]
OutputGate = Literal["none", "query", "matrix", "behind"]


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """Shape of one attention layer, and what of its code moves memory."""

    n_heads: int
    n_kv_heads: int
    head_dim: int
    """Features of each head of query and key."""
    value_head_dim: int
    """Features of each head of value and output."""
    window_tokens: int | None = None
    """The sliding window; ``None``: full attention."""
    pieces: Pieces = "none"
    """The code cuts the patches of all images into pieces that attend to themselves: a ``window`` of
    ``window_tokens`` patches, or an ``image`` each.
    """

    # Positions
    position: Literal["rope", "alibi", "learned", "none"] = "rope"
    position_bias: bool = False
    """An fp32 number for each head and pair of positions is made once a pass."""
    rotary_width: int = 0
    """Features of each head that rotary positions turn; 0: all."""
    rotary_form: RotaryForm = "halves"
    """What the second product of ``x * cos + turned(x) * sin`` reads: swapped ``halves`` or pairs;
    ``repeated_pairs``: of tables that each layer repeats for both of a pair; ``crossed``: products of halves
    with tables of one, then joined (``crossed_views``: with the first half of whole tables); ``complex``: one
    product of complex numbers.
    """
    rotary_result: RotaryResult = "wider"
    """Its dtype: that of the ``wider`` of input and tables, the ``input``'s by a cast (of fp32 tables), or
    that after a computation in ``fp32``, or one whose products alone are (``floated``: input and swapped
    input are cast, tables are fp32).
    """
    tables_by_window: bool = False
    """Layers with a window have cosines and sines of their own."""
    widened_tables: bool = False
    """Tables have the dtype of the stream, which autocast widens to fp32 before the first layer."""
    joined_rotary: bool = False
    """Rotary code concatenates a turned and an untouched part, which lays query and key out head by head."""
    rotary_join: RotaryJoin = "function"
    """Where both parts are joined: in one expression (``inline``), in a ``function`` behind both turns, or in
    the ``forward`` that calls attention, whose variables keep the parts until it returns.
    """

    # Query, key and value
    fused_qkv: bool = False
    """One matrix makes all three."""
    fused_parts: FusedParts = "split"
    """How they are taken from its product: ``split`` at once, over all features or of each head; as
    ``slices``; each head's parts ``selected`` by a number, or ``indexed`` by a list of one, which copies
    them.  ``unbound``: they are a dimension of three that was moved to the front.
    """
    one_product: bool = False
    """One matrix makes all three here, with one branch of LoRA, though models have three."""
    heads_last: bool = False
    """The code sees the three products as heads when all are there."""
    head_norms_last: bool = False
    """Query and key norms run after all three projections, not each behind its own."""
    head_norms_turned: bool = False
    """Query and key norms run behind the rotary turn of both."""
    clips_products: bool = False
    """Query, key and value are clamped in place."""
    scales_query: bool = False
    """The code itself multiplies the query by a number."""
    scales_key: bool = False
    """The code itself multiplies the key by a number."""
    scales_turned_query: bool = False
    """The turned query is multiplied by a number for each position."""
    scales_query_in_fp32: bool = False
    """A query without positions is multiplied by fp32 numbers of its position, and cast back."""
    output_gate: OutputGate = "none"
    """What attention returns is weighed by a sigmoid: of the second half of the ``query``'s product, which is
    twice as wide, or of the product of a ``matrix`` behind those of query, key and value, or ``behind`` the
    kernel of attention.
    """
    key_is_value: bool = False
    """The value is the key's product, before the key's norm."""
    borrows_keys: bool = False
    """Keys and values are those of a layer before."""
    lends_keys: bool = False
    """Layers behind take keys and values of this one, which a checkpointed pass keeps with their graph."""

    # Scores
    softcap: bool = False
    """A hyperbolic tangent bounds the scores."""
    sinks: bool = False
    """Each head has one more logit, which takes probability from the others."""
    sdpa_input: SdpaInput = "grouped"
    """Keys and values reach torch's kernel ``grouped``, ``expanded`` to all heads, or to be ``broadcast`` by
    it, which only its unfused form does.
    """
    makes_mask: bool = False
    """The code has the causal mask made under SDPA too, where others leave it to the kernel."""
    eager_scores: EagerScores = "fp32_softmax"
    """Dtypes of eager attention: a softmax in fp32, scores that an fp32 bias widens, scores in
    ``fp32`` too, or all in ``compute``.
    """
    fills_scores: bool = False
    """The code casts the mask to bool, and fills the scores where it says so."""
    dropout: bool = False
    """Probabilities are dropped in training, of which eager attention keeps a mask."""
    returned_scores: Literal["none", "softmax", "cast"] = "none"
    """The layer always returns its probabilities, as the softmax made them or cast for the product, so that
    they live until the next layer has run.
    """

    @property
    def has_sloped_mask(self) -> bool:
        """Whether the mask of a pass is one for each head, with its slopes: Falcon's with ALiBi."""
        return self.makes_mask and self.position == "alibi"

    @property
    def q_width(self) -> int:
        """Query features per token."""
        return self.n_heads * self.head_dim

    @property
    def k_width(self) -> int:
        """Key features per token."""
        return self.n_kv_heads * self.head_dim

    @property
    def v_width(self) -> int:
        """Value features per token."""
        return self.n_kv_heads * self.value_head_dim

    @property
    def out_width(self) -> int:
        """Features per token that attention hands to its output projection."""
        return self.n_heads * self.value_head_dim


NO_ATTENTION = AttentionSpec(0, 0, 0, 0, position="none")
"""The attention of a layer that has none."""
