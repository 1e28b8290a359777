"""What is left of the chunk being played when the next one is asked for, for real-time chunking.

A leftover is [L, A] float32 in the policy's own normalised action space, 1 <= L <= T. Its first
action is the one of the step at which the request is made. A row without one, such as the first of
an episode, has None. Source: Black et al. 2025, "Real-Time Execution of Action Chunking Flow
Policies", arXiv 2506.07339.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

Leftovers = Sequence[np.ndarray | None]
"""One per row."""

ARRAY = "rtc.leftovers"
"""Name of the leftovers' array in a frame, where observations have theirs."""


def checked(
    leftovers: Leftovers | None, num_rows: int, chunk_size: int, action_dim: int
) -> list[np.ndarray | None] | None:
    """The leftovers as float32; None if no row has one.

    Raises:
        ValueError: not one per row, or one that is no [1..chunk_size, action_dim] of numbers.
    """
    if leftovers is None:
        return None
    if len(leftovers) != num_rows:
        raise ValueError(f"got {len(leftovers)} leftovers for {num_rows} rows: give one, or None")
    taken = [None if one is None else np.asarray(one, dtype=np.float32) for one in leftovers]
    for row, one in enumerate(taken):
        if one is None:
            continue
        if one.ndim != 2 or not 1 <= len(one) <= chunk_size or one.shape[1] != action_dim:
            raise ValueError(
                f"the leftover of row {row} has shape {one.shape}; expected 1 to {chunk_size} "
                f"normalised actions of {action_dim} numbers"
            )
    return taken if any(one is not None for one in taken) else None


def grouped(
    leftovers: Leftovers | None, num_rows: int, batch_rows: int, execution_horizon: int
) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
    """Rows that may share a network call, with their leftovers.

    A call is guided by leftovers of one length, or not at all. Actions beyond the execution horizon
    have no weight and are cut off, so that rows which differ in those alone share a call.

    Yields:
        At most `batch_rows` row numbers [G], ascending, and leftovers [G, L, A] or None.
    """
    if leftovers is None:
        for start in range(0, num_rows, batch_rows):
            yield np.arange(start, min(start + batch_rows, num_rows)), None
        return
    cut = [None if one is None else one[:execution_horizon] for one in leftovers]
    lengths = np.array([0 if one is None else len(one) for one in cut])
    for length in np.unique(lengths):
        members = np.flatnonzero(lengths == length)
        for start in range(0, len(members), batch_rows):
            rows = members[start : start + batch_rows]
            given = [one for one in (cut[row] for row in rows) if one is not None]
            yield rows, np.stack(given) if given else None


def packed(leftovers: Leftovers | None) -> tuple[list[int] | None, dict[str, np.ndarray]]:
    """Lengths for a frame's header, 0 for None, and all actions as one array for its body."""
    if leftovers is None:
        return None, {}
    given = [one for one in leftovers if one is not None]
    lengths = [0 if one is None else len(one) for one in leftovers]
    return lengths, {ARRAY: np.concatenate(given)} if given else {}


def unpacked(
    lengths: Sequence[int] | None, arrays: dict[str, np.ndarray]
) -> list[np.ndarray | None] | None:
    """The inverse of `packed`; takes its array out of `arrays`.

    Raises:
        ValueError: the two do not fit each other.
    """
    actions = arrays.pop(ARRAY, None)
    if lengths is None:
        return None
    if sum(lengths) != (0 if actions is None else len(actions)) or min(lengths, default=0) < 0:
        raise ValueError(f"leftovers of lengths {lengths} do not fit the array that came with them")
    ends = np.cumsum(lengths).tolist()
    return [
        None if actions is None or not length else actions[end - length : end]
        for length, end in zip(lengths, ends, strict=True)
    ]
