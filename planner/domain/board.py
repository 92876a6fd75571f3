"""What the server of a card is like where nobody describes it:
cards on NVIDIA's boards come in servers of their generation.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.domain.hardware import GpuSpec


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
