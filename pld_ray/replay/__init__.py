"""Replay: every frame stored once, sampled in one gather, saved with its checksum."""

from pld_ray.replay.chunk_ring import ChunkRing
from pld_ray.replay.frame_ring import FrameRing
from pld_ray.replay.schema import ColumnSpec, ReplaySchema
from pld_ray.replay.storage import ReplayFileError
from pld_ray.replay.symmetric import SymmetricReplay

__all__ = [
    "ChunkRing",
    "ColumnSpec",
    "FrameRing",
    "ReplayFileError",
    "ReplaySchema",
    "SymmetricReplay",
]
