"""What is trained: a decoder-only transformer, described by its matrices and by what its blocks compute."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from planner.domain.attention_shape import AttentionSpec
from planner.domain.mixer_specs import MixerSpec
from planner.domain.recipes.parallel import Stage
from planner.domain.stored import StoredWeights
from planner.domain.vision import TowerSpec

LinearGroup = Literal[
    "attention", "mixer", "mlp", "expert", "shared_expert", "router", "head", "embedding_projection"
]
LinearKind = Literal["linear", "subclass", "conv1d", "parameter"]
Side = Literal["no", "outputs", "inputs"]
InputTensor = Literal[
    "attn_in",
    "attn_latent_q",
    "attn_latent_kv",
    "attn_out",
    "mixer_in",
    "mixer_mid",
    "mixer_step",
    "mixer_out",
    "mlp_in",
    "mlp_mid",
    "head_in",
    "embed",
    "layer_inputs",
    "layer_gate",
    "layer_mid",
    "low_rank",
    "streams",
    "joined_streams",
    "soft_rows",
]
NormKind = Literal["rms", "layer"]
NormScaling = Literal[
    "cast",
    "cast_first",
    "wide",
    "one_plus",
    "centred",
    "operators",
    "narrowed",
    "returned",
    "autocast",
    "widened",
    "in_fp32",
    "turned",
]
RouterKind = Literal[
    "softmax",
    "softmax_fp32",
    "chosen",
    "fp32",
    "sigmoid",
    "sigmoid_divided",
    "sigmoid_fp32",
    "sigmoid_input",
    "fp32_cast",
    "module",
    "sigmoid_module",
    "every",
    "beside",
    "selected",
    "sampled",
]
BranchSum = Literal["branches", "in_place", "stream"]
SumsInside = Literal["none", "mlp", "both"]
Until = Literal["part", "sum", "norm", "layer"]
"""How long a variable lives: as the part that reads it runs, until the sum behind that or the next norm is
there, or until the layer ends.
"""
EmbeddingScale = Literal["none", "table", "norm", "model", "stream"]
ParamsOrigin = Literal[
    "published-exact", "published-bytes", "meta-device", "published-rounded", "config-only"
]


@dataclass(frozen=True, slots=True)
class LinearSpec:
    """One weight matrix of shape ``(out_features, in_features)``, repeated ``copies`` times (experts).

    ``name`` is the module name as PEFT's ``target_modules`` sees it (``q_proj``, ``query_key_value``).
    ``kind`` is ``linear`` (``nn.Linear``), ``subclass``, ``conv1d`` (GPT-2's transposed linear) or
    ``parameter``.  A ``subclass`` is a class of the model's own derived from ``nn.Linear``, which the
    quantisers of Transformers 5 pass over.  A ``parameter`` is a fused expert tensor, which k-bit quantisers
    leave in 16-bit.  ``reads`` names the tensor it consumes, so that inputs saved for backward are counted
    once when several matrices share them.  ``active_copies`` of the copies see each token.

    ``legacy_names`` are those of the separate matrices that a bare parameter replaced: PEFT reaches it by
    these only, and not at all where there are none; ``asked_rank``: with one rank, however many they are.
    ``adaptable`` is false for a matrix whose name PEFT
    gives to the fused experts instead.  ``packed_as_head``: a head that k-bit quantisers replace like any
    other matrix.  ``left_whole``: a matrix that the quantiser of the checkpoint left as it was.  ``divided``:
    which side of the matrix lies in parts on several GPUs.
    """

    name: str
    group: LinearGroup
    in_features: int
    out_features: int
    reads: InputTensor
    bias: bool = False
    kind: LinearKind = "linear"
    copies: int = 1
    active_copies: int = 1
    legacy_names: tuple[str, ...] = ()
    asked_rank: bool = False
    adaptable: bool = True
    packed_as_head: bool = False
    left_whole: bool = False
    divided: Side = "no"

    @property
    def rank_factor(self) -> int:
        """Ranks that PEFT gives an adapter here, in units of the asked rank:
        one for each matrix that was fused.
        """
        return 1 if self.asked_rank else max(1, len(self.legacy_names))

    @property
    def mixes_tokens(self) -> bool:
        """Whether it belongs to attention, or to what stands in its place."""
        return self.group in ("attention", "mixer")

    @property
    def weight_count(self) -> int:
        """Weight elements over all copies, without bias."""
        return self.in_features * self.out_features * self.copies

    @property
    def bias_count(self) -> int:
        """Bias elements over all copies."""
        return self.out_features * self.copies if self.bias else 0


@dataclass(frozen=True, slots=True)
class NormSpec:
    """A normalisation over ``width`` features; ``copies`` of them in the block.

    ``on`` is ``hidden`` for norms over the residual stream, ``heads`` for query/key norms, ``latent`` for the
    compressed projections of multi-head latent attention, ``mixer`` for the gated norm of a layer without
    attention.  ``layer_inputs`` is for what layers read beside the stream, ``soft_rows`` for rows that stand
    in for those of words.  ``rows_per_token`` is how many
    vectors are normalised per token (1 for the residual stream, the number of heads for per-head query
    norms).  ``weight`` is false for norms without parameters.

    ``scaling`` is how the code of an unfused norm applies its weight,
    which decides what the norm keeps for backward:

    - ``cast``: after casting back (Llama)
    - ``cast_first``: the same, when nothing refers to the fp32 result any more (Llama 4)
    - ``wide``: before casting back (OLMo 2, gpt-oss)
    - ``one_plus``: before casting back, with 1 + weight (Gemma)
    - ``centred``: before casting back, on values less their mean (Cohere)
    - ``operators``: a layer norm made of single operators of torch
    - ``narrowed``: a layer norm in fp32, cast back (OLMo 1)
    - ``returned``: one that autocast computes in fp32, cast back (DBRX)
    - ``autocast``: one of its input in the dtype of autocast (Nemotron)
    - ``widened``: before casting back, with the weight in fp32 (Nemotron-H)
    - ``in_fp32``: the same, when nothing refers to the result before the weight any more (Gemma 4)
    - ``turned``: in one kernel, and of queries and keys that kernel turns them to their positions, too
    """

    kind: NormKind
    width: int
    copies: int = 1
    bias: bool = False
    weight: bool = True
    on: Literal["hidden", "heads", "latent", "mixer", "layer_inputs", "soft_rows"] = "hidden"
    rows_per_token: int = 1
    scaling: NormScaling = "cast"

    @property
    def param_count(self) -> int:
        """Parameters over all copies."""
        return self.width * self.copies * (int(self.weight) + int(self.bias))


@dataclass(frozen=True, slots=True)
class MlpSpec:
    """Shape of one feed-forward layer; with ``n_experts`` > 0 a mixture of experts.

    ``width`` is the intermediate size of the dense MLP (0 if the layer has none) or of one expert;
    ``shared_width`` that of the always-active shared expert.  ``gated`` means two input projections whose
    product feeds the output projection.

    ``router`` is how experts are chosen, which decides the dtype of what is weighted:

    - ``softmax``: fp32 probabilities over all experts, cast back to the dtype of the logits (Qwen, OLMoE)
    - ``softmax_fp32``: the same, left in fp32 (Mixtral)
    - ``chosen``: a softmax over the chosen logits alone (Granite, gpt-oss)
    - ``fp32``: the input and the weight of the router in fp32 too (DeepSeek V2)
    - ``sigmoid``: the same, with a sigmoid in the dtype of the product (DeepSeek V3)
    - ``sigmoid_divided``: the same, divided by their sum, which autocast makes in fp32 (Hy3)
    - ``sigmoid_fp32``: a sigmoid of logits that are cast to fp32 (MiniMax M2)
    - ``sigmoid_input``: a sigmoid of logits in the dtype of the input (LFM2)
    - ``fp32_cast``: as ``fp32``, outside of autocast, and what was chosen is cast back (ERNIE 4.5)
    - ``module``: as ``softmax``, of logits that an ``nn.Linear`` makes,
      so that it is quantised and adapted as one (Hunyuan)
    - ``sigmoid_module``: a sigmoid of such logits that are cast to fp32 (AFMoE)
    - ``every``: all experts compute all tokens, whose inputs are multiplied by a sigmoid,
      0 where not chosen (Llama 4)
    - ``beside``: a softmax in fp32 of logits that an ``nn.Linear`` makes of the scaled and normed stream;
      the experts run behind a dense part of ``shared_width`` (Gemma 4)
    - ``selected``: a softmax in the dtype of logits that an ``nn.Linear`` makes; matrices of an expert are
      taken out of parameters of all (DBRX); ``jitters``: its input is multiplied by random numbers
    - ``sampled``: experts are drawn by logits that an ``nn.Linear`` makes (Phi-3.5-MoE); ``jitters`` too

    ``shared_first``: the shared expert has no gate and runs before the router.  ``scales_gate``: the product
    of the gate and the output are multiplied by numbers (Falcon-H1).  ``sparse_gate``: of the gate's product
    the largest features alone are kept (Gemma 3n).  ``wide_sum``: experts and shared one are added in fp32.
    """

    width: int
    gated: bool
    activation: str
    n_experts: int = 0
    top_k: int = 0
    shared_width: int = 0
    router: RouterKind = "softmax"
    shared_first: bool = False
    scales_gate: bool = False
    sparse_gate: bool = False
    jitters: bool = False
    wide_sum: bool = False


@dataclass(frozen=True, slots=True)
class BlockSpec:
    """One decoder layer.

    ``parallel`` blocks feed attention and MLP from the residual stream at once (GPT-J, NeoX, Falcon, Phi-2).
    ``extra_params`` are trainable tensors that are neither matrix nor norm (attention sinks, layer scales,
    convolutions).  ``mixer``: what mixes tokens in place of attention, which is ``NO_ATTENTION`` then, or
    beside it (Falcon-H1).  A layer with one norm is one part alone: a mixer, attention or feed-forward
    (Nemotron-H).  ``reads_stream`` marks blocks whose norms stand behind the branches (OLMo 2), so that
    attention reads the layer's own input.  ``norms_first`` marks parallel blocks that make the outputs of
    both norms before either part runs (Falcon 40B).  ``dropouts`` counts the model's own dropouts over the
    residual width (not LoRA's) whose probability is above zero; ``drops_inside`` marks those that run inside
    attention and feed-forward part, whose variables live until then.  ``norms_sums`` marks norms behind the
    branches that read the stream after the addition, not the branch before it (OPT 350M).  ``branch_sum`` is
    what a parallel block adds first: both branches, one in place to the other (Falcon), or the stream and the
    first one (Cohere).  ``scales_branches`` marks a product of every branch with a number (Granite).
    ``weighs_branches``: every branch is multiplied by a vector, both of which are among ``extra_params``; a
    variable refers to the first product until the layer ends (InternVL's tower).
    ``keeps_attended``: a variable refers to what attention returned until the layer ends (Llama 4).
    ``keeps_normed``: until when one refers to what the norm before either part returned, which is seldom
    longer than the part runs.  ``sums_inside``: the modules of these parts add the residual themselves,
    while their variables refer to attention's scores and heads, or to what the activation returned.
    ``inline_mlp``: the feed-forward part is no module, so that its input goes with its first product (OPT).
    ``layer_inputs_width``: features for each token of the inputs that all layers have beside the stream
    (Gemma 4).  ``streams``: of how many streams each layer computes one, and corrects the others by it
    (Gemma 3n).  ``wide_stream``: what layers add to is fp32, and norms read it in the dtype of their weight
    (Mamba 2 alone).
    """

    attention: AttentionSpec
    mlp: MlpSpec
    linears: tuple[LinearSpec, ...]
    norms: tuple[NormSpec, ...]
    parallel: bool = False
    extra_params: int = 0
    dropouts: int = 0
    drops_inside: bool = False
    reads_stream: bool = False
    norms_first: bool = False
    norms_sums: bool = False
    branch_sum: BranchSum = "branches"
    scales_branches: bool = False
    weighs_branches: bool = False
    keeps_attended: bool = False
    keeps_normed: tuple[Until, Until] = ("part", "part")
    sums_inside: SumsInside = "none"
    inline_mlp: bool = False
    layer_inputs_width: int = 0
    streams: int = 1
    wide_stream: bool = False
    mixer: MixerSpec | None = None

    @property
    def attends(self) -> bool:
        """Whether the layer has attention."""
        return self.attention.n_heads > 0

    @property
    def param_count(self) -> int:
        """All parameters of the layer."""
        matrices = sum(linear.weight_count + linear.bias_count for linear in self.linears)
        return matrices + sum(norm.param_count for norm in self.norms) + self.extra_params

    def __hash__(self) -> int:
        """Hash of a few fields: equality still compares all, and lookups in caches stay cheap."""
        return hash((len(self.linears), self.linears[:1], self.linears[-1:]))


@dataclass(frozen=True, slots=True)
class BlockGroup:
    """``count`` identical decoder layers."""

    count: int
    block: BlockSpec


@dataclass(frozen=True, slots=True)
class EmbeddingSpec:
    """A lookup table of ``rows`` vectors of ``width`` features (token, position).

    ``shared``: looked up once for all samples.  ``per_layer``: its rows hold an input for each layer.
    ``soft``: rows of marks of images or sounds, which are computed for all tokens; words keep their own.
    """

    name: str
    rows: int
    width: int
    shared: bool = False
    per_layer: bool = False
    soft: bool = False

    @property
    def param_count(self) -> int:
        """Elements of the table."""
        return self.rows * self.width


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A decoder-only language model.

    ``token_embedding`` and ``head`` share one tensor when ``tied``; then ``head`` still describes the product
    that is computed but adds no parameters.  ``published_params`` is the count its authors give,
    ``params_origin`` how closely the count from shapes agrees with it.  ``normhead`` marks a head that is
    re-normalised on every forward (Baichuan 2).  ``fp32_logits`` is false where the model's own code keeps
    logits in the compute dtype.  ``remote_code`` marks architectures whose module ships with the checkpoint,
    not with Transformers.  ``logit_softcap`` marks logits that pass ``cap * tanh(logits / cap)`` before the
    loss (Gemma 2): one more tensor of that size is saved for backward.  ``embedding_norm`` marks a norm over
    the embeddings (the first of ``final_norms``), ``embedding_dropout`` a dropout of them.
    ``drops_by_module``: its dropouts are modules, which trainers can switch off.
    ``embedding_scale``: who multiplies embeddings by a number: nobody, the module of the ``table`` (Gemma),
    the ``model`` behind it (Granite), or the model when it starts the ``stream``, beside which the rows stay
    (Trinity); ``norm``: that module norms them (Muse Glimmer).  ``scales_logits``: logits are multiplied by a
    number; ``wide_logits``: the model casts them to fp32.  ``masks_first``: masks are made before the rows of
    positions are looked up (OPT); ``makes_window_mask``: one of windows is made though no layer may have a
    window (Qwen2-MoE).  ``value_head``: beside the head of words one of a single
    number, which alone is trained for.  ``mask_bytes``: masks of all pairs of positions that come with the
    weights (GPT-Neo).  ``vision``: the tower of a model that sees, ``decoder``:
    the architecture of its other part.  ``text_class``: the class
    by which Transformers loads such a checkpoint without its tower, where it has one.  ``loads_whole``:
    AutoModelForCausalLM takes the class with the tower all the same.  ``stored``: how the checkpoint holds
    its matrices where a quantiser packed them.  ``parts``: over how many GPUs its matrices are divided, of
    which this is one GPU's part; ``expert_parts``: the same of its experts.
    ``stage``: of a pipeline, whose layers alone these are.  ``omits`` says
    what the checkpoint holds besides; empty when nothing is left out.
    """

    id: str
    hub_id: str
    architecture: str
    hidden_size: int
    vocab_size: int
    groups: tuple[BlockGroup, ...]
    token_embedding: EmbeddingSpec
    head: LinearSpec
    tied: bool
    max_position_tokens: int | None
    final_norms: tuple[NormSpec, ...] = ()
    extra_embeddings: tuple[EmbeddingSpec, ...] = ()
    extra_linears: tuple[LinearSpec, ...] = ()
    checkpoint_dtype: Literal["fp32", "bf16", "fp16"] = "bf16"
    normhead: bool = False
    fp32_logits: bool = True
    remote_code: bool = False
    logit_softcap: bool = False
    embedding_norm: bool = False
    embedding_dropout: bool = False
    drops_by_module: bool = False
    embedding_scale: EmbeddingScale = "none"
    scales_logits: bool = False
    wide_logits: bool = False
    masks_first: bool = False
    makes_window_mask: bool = False
    value_head: bool = False
    mask_bytes: int = 0
    vision: TowerSpec | None = None
    decoder: str = ""
    text_class: str = ""
    loads_whole: bool = False
    omits: str = ""
    stored: StoredWeights | None = None
    parts: int = 1
    expert_parts: int = 1
    stage: Stage | None = None
    published_params: int | None = None
    params_origin: ParamsOrigin = "config-only"
    source: str = ""

    def __hash__(self) -> int:
        """Hash of the identifying fields: equality still compares all, and lookups in caches stay cheap."""
        return hash(
            (self.id, self.architecture, self.hidden_size, self.vocab_size, len(self.groups), self.parts)
        )

    def text_part(self) -> ModelSpec:
        """What ``text_class`` loads of a checkpoint that sees."""
        omits = "the vision tower and its projector, which the multimodal class also loads"
        return replace(self, vision=None, omits=omits, published_params=None, params_origin="config-only")

    @property
    def n_layers(self) -> int:
        """Decoder layers."""
        return sum(group.count for group in self.groups)

    @property
    def windows(self) -> tuple[int, ...]:
        """Windows of attention that some layers have, in tokens, from the smallest on."""
        known = {group.block.attention.window_tokens for group in self.groups}
        return tuple(sorted(window for window in known if window is not None))

    @property
    def param_count(self) -> int:
        """All distinct parameters, tied tensors once."""
        blocks = sum(group.count * group.block.param_count for group in self.groups)
        outside = sum(norm.param_count for norm in self.final_norms) + sum(
            table.param_count for table in self.extra_embeddings
        )
        outside += sum(linear.weight_count + linear.bias_count for linear in self.extra_linears)
        head = self.head.bias_count + (0 if self.tied else self.head.weight_count)
        seeing = self.vision.param_count if self.vision else 0
        return blocks + outside + self.token_embedding.param_count + head + seeing

    def with_blocks(self, change: Callable[[BlockSpec], BlockSpec]) -> ModelSpec:
        """The same model with other layers."""
        groups = tuple(replace(group, block=change(group.block)) for group in self.groups)
        return replace(self, groups=groups)

    def with_linears(self, change: Callable[[tuple[LinearSpec, ...]], Iterable[LinearSpec]]) -> ModelSpec:
        """The same model with other matrices in its layers."""
        return self.with_blocks(lambda block: replace(block, linears=tuple(change(block.linears))))

    @property
    def without_dropout(self) -> ModelSpec:
        """The same model that drops nothing."""

        def kept(block: BlockSpec) -> BlockSpec:
            return replace(block, dropouts=0, attention=replace(block.attention, dropout=False))

        return replace(self, embedding_dropout=False).with_blocks(kept)

    def blocks(self) -> Iterator[tuple[BlockSpec, int]]:
        """Every kind of block with how many of it there are: the layers, then those of a vision tower."""
        yield from ((group.block, group.count) for group in self.groups)
        if self.vision is not None:
            yield from self.vision.blocks()

    def linears(self) -> Iterator[tuple[LinearSpec, int]]:
        """Every kind of matrix in blocks with how many blocks have it."""
        for block, count in self.blocks():
            yield from ((linear, count) for linear in block.linears)

    @property
    def active_param_count(self) -> int:
        """Parameters that one token passes through (all of them for a dense model)."""
        idle = sum(
            group.count * linear.in_features * linear.out_features * (linear.copies - linear.active_copies)
            + group.count * (linear.bias_count - linear.bias_count * linear.active_copies // linear.copies)
            for group in self.groups
            for linear in group.block.linears
        )
        return self.param_count - idle

    @property
    def is_moe(self) -> bool:
        """Whether any layer routes tokens to experts."""
        return any(group.block.mlp.n_experts for group in self.groups)
