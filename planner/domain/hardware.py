"""What the job runs on: GPU, host, links between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

NumberOrigin = Literal["datasheet", "measured", "derived", "unsourced", "assumed", "user"]
"""Where a number comes from.  ``unsourced`` is kept and shown as such,
never passed off as a datasheet value.
"""

MatmulShapes = Literal["any", "square"]
"""Among which products the best one was looked for: a search over all shapes,
or square ones of a few sizes.
"""

# Major compute capability, CUDA C++ Programming Guide, tensor cores by capability.
_FIRST_WITH_BF16 = 8

USUAL_MULTIPROCESSORS = 108
"""Those of an A100, where nobody says how many a card has."""
UNKNOWN_HOST = "unknown"
"""Id of the host of a job that names none."""


@dataclass(frozen=True, slots=True)
class GpuSpec:
    """One accelerator as one CUDA device sees it.  Rates are dense, with fp32 accumulation.

    ``visible_memory_bytes`` is what ``cudaMemGetInfo`` reports as total: the wall a job hits, lower than the
    marketing size.  ``None`` means unknown (or no CUDA device): there is no memory verdict on such a card.
    ``driver_keeps_bytes``: what is missing there of the total that nvidia-smi shows.
    ``multiprocessors``: streaming multiprocessors that are switched on.  ``best_matmul_flop_per_s`` is the
    best that somebody measured for a 16-bit product, among ``best_matmul_shapes``, and
    ``best_fp8_matmul_flop_per_s`` for one of 8-bit floats.
    ``interconnect_bytes_per_s`` is the sum of both directions over all links of one device, as vendors state
    it.  ``unified_memory``: GPU and CPU share one memory, so what the host holds comes off what the GPU has.
    Any other ``None`` is unknown as well: whatever needs that number is not answered.  ``origins`` gives the
    origin of each known numeric field by the name it has here.
    """

    id: str
    name: str
    vendor: str
    generation: str
    compute_capability: str
    marketing_memory_bytes: int | None
    visible_memory_bytes: int | None
    memory_bandwidth_bytes_per_s: float | None
    bf16_flop_per_s: float | None
    fp16_flop_per_s: float | None
    fp32_flop_per_s: float | None
    int8_op_per_s: float | None
    interconnect: str
    interconnect_bytes_per_s: float | None
    pcie_generation: int | None
    pcie_lanes: int | None
    tdp_w: float | None
    origins: tuple[tuple[str, NumberOrigin], ...]
    source: str
    best_matmul_flop_per_s: float | None = None
    best_fp8_matmul_flop_per_s: float | None = None
    multiprocessors: int | None = None
    fp8_flop_per_s: float | None = None
    best_matmul_shapes: MatmulShapes | None = None
    driver_keeps_bytes: int | None = None
    unified_memory: bool = False

    @property
    def is_cuda(self) -> bool:
        """Whether torch's CUDA allocator runs on it, which the memory formulas describe."""
        return self.vendor == "nvidia"

    @property
    def counted_multiprocessors(self) -> int:
        """Its multiprocessors, or those of an A100 where they are not known."""
        return self.multiprocessors or USUAL_MULTIPROCESSORS

    @property
    def needs_bridge(self) -> bool:
        """Whether its links are those of a bridge, which is sold apart from the card."""
        return self.interconnect.endswith("-bridge")

    @property
    def rates_are_unsourced(self) -> bool:
        """Whether nobody is named who says its 16-bit rate, or measured what products reach."""
        origins = dict(self.origins)
        rated = "bf16_flop_per_s" if self.bf16_flop_per_s is not None else "fp16_flop_per_s"
        return origins.get(rated) == "unsourced" and origins.get("best_matmul_flop_per_s") != "measured"

    @property
    def supports_bf16(self) -> bool:
        """Whether bf16 matrix units exist: compute capability 8.0 and later on NVIDIA,
        whether or not their rate is known.
        """
        if self.is_cuda and self.generation != "unknown":
            return int(self.compute_capability.partition(".")[0]) >= _FIRST_WITH_BF16
        return self.bf16_flop_per_s is not None or self.vendor in ("amd", "apple")

    def origin_of(self, field: str) -> NumberOrigin:
        """Origin of one numeric field; raises ``KeyError`` for a field that has none."""
        return dict(self.origins)[field]


@dataclass(frozen=True, slots=True)
class HostSpec:
    """The machine around the GPUs.  ``None`` is unknown,
    which is the default and widens the intervals of time.

    ``pcie_generation``, ``pcie_lanes``: of the slot of each GPU.
    ``network_bytes_per_s``: one direction of all links from this node to others, summed.
    """

    id: str
    cores: int | None = None
    memory_bytes: int | None = None
    memory_bandwidth_bytes_per_s: float | None = None
    pcie_generation: int | None = None
    source: str = ""
    network_bytes_per_s: float | None = None
    pcie_lanes: int | None = None


@dataclass(frozen=True, slots=True)
class Hardware:
    """All devices of one job.

    ``gpu_reserved_bytes`` is memory that a desktop or another job already holds on each card.  ``link``
    overrides how GPUs of one node talk: ``nvlink``, ``pcie``, ``qpi`` or ``None``: the card's own links, and
    PCIe where those need a bridge.  ``link_bytes_per_s`` is what was measured on that way, in one direction.
    ``power_limit_w``: what each GPU may draw, where that is less than its rated power.
    """

    gpu: GpuSpec
    gpus_per_node: int
    nodes: int
    host: HostSpec
    gpu_reserved_bytes: int = 0
    link: str | None = None
    network_bytes_per_s: float | None = None
    link_bytes_per_s: float | None = None
    power_limit_w: float | None = None

    @property
    def world_size(self) -> int:
        """Processes in the job: one per GPU."""
        return self.gpus_per_node * self.nodes

    @property
    def limit_bytes(self) -> int | None:
        """What the job may use of each card; ``None`` where that is unknown, or the device is not CUDA's."""
        visible = self.gpu.visible_memory_bytes
        if visible is None or not self.gpu.is_cuda:
            return None
        # Others can hold all of a card, never more.
        return max(visible - self.gpu_reserved_bytes, 0)


@dataclass(frozen=True, slots=True)
class BoardServer:
    """Servers around a board, relative to those of A100 boards: memory bandwidth of the host,
    and network per GPU.
    """

    host_memory: float
    network: float


# Memory: DGX A100 has 16 channels of DDR4-3200 (410 GB/s), DGX H100 and H200 16 of DDR5-4800 (614), DGX B200
# of DDR5-5600 (717).  Network: 400 Gbit/s for the 8 GPUs of an EC2 p4d.24xlarge, 3,200 of a p5.48xlarge
# (H100) and of a p6-b200.48xlarge; DGX H100 and B200 have 8 x 400 as well.  Source: NVIDIA's user guides of
# these systems, AWS's pages of these instances.
_SERVERS = {"hopper": BoardServer(1.5, 8.0), "blackwell": BoardServer(1.75, 8.0)}
_USUAL = BoardServer(1.0, 1.0)
_BOARD_LINKS = ("nvlink4", "nvlink4-restricted", "nvlink5")


def server_of(gpu: GpuSpec) -> BoardServer:
    """The server that ``gpu`` comes in; the usual one for cards that fit any server,
    and for boards up to A100.
    """
    return _SERVERS.get(gpu.generation, _USUAL) if gpu.interconnect in _BOARD_LINKS else _USUAL
