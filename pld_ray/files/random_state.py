"""Random streams that go on from a file."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def restore_generator(generator: torch.Generator, state: torch.Tensor) -> None:
    """Go on with a stream where it was saved.

    One of another kind of device cannot go on here. Then another one begins, whose seed follows
    from the state, so that a file gives the same numbers every time.

    Args:
        generator: of the device that draws from now on.
        state: `get_state()` of the saved one, [n] uint8 on the CPU.
    """
    if len(state) == len(generator.get_state()):
        generator.set_state(state)
    else:
        digest = hashlib.sha256(state.numpy().tobytes()).digest()
        generator.manual_seed(int.from_bytes(digest[:8], "little") >> 1)
