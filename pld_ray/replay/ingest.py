"""What comes into a ring: checked whole, before anything of it is stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from pld_ray.columns import DISCRETE_PENALTY, SUCCESS
from pld_ray.errors import UserError
from pld_ray.replay.schema import END_OF_TASK, MC_RETURN, ReplaySchema

Columns = Mapping[str, np.ndarray | Tensor]


class RingTooSmallError(UserError, ValueError):
    """An episode has more rows than the whole ring; the message names what to raise."""


def packed_episodes(
    schema: ReplaySchema, columns: Columns, episode_lengths: Sequence[int], capacity: int
) -> Tensor:
    """Packed rows of the episodes, [sum(L + 1), row_width].

    Raises:
        ValueError: as `FrameRing.add_episodes`.
    """
    for number, length in enumerate(episode_lengths):
        if length < 1:
            raise ValueError(f"replay: episode {number} has {length} transitions, need >= 1")
        if length + 1 > capacity:
            raise RingTooSmallError(
                f"replay: episode {number} needs {length + 1} rows but the capacity is "
                f"{capacity}; raise algorithm.online_capacity or algorithm.offline_capacity"
            )
    ends = list(accumulate(length + 1 for length in episode_lengths))
    num_rows = ends[-1] if ends else 0
    check_columns(schema, columns, num_rows)
    rows = schema.pack(columns, num_rows)
    check_finite(schema, columns, rows, ends)
    terminated = schema.view(rows, "terminated")
    for number, (length, end) in enumerate(zip(episode_lengths, ends, strict=True)):
        if terminated[end - length - 1 : end - 2].any():
            raise ValueError(
                f"replay: episode {number} has `terminated` before its last transition"
            )
    return rows


def check_columns(schema: ReplaySchema, columns: Columns, num_rows: int) -> None:
    """Raise ValueError unless every column is present with `num_rows` rows of its shape."""
    for name in schema.input_columns:
        if name not in columns:
            raise ValueError(f"replay: column {name!r} is missing; the batch has {sorted(columns)}")
        want = (num_rows, *schema.columns[name].shape)
        have = tuple(columns[name].shape)
        if have != want:
            raise ValueError(
                f"replay: column {name!r} has shape {have}, need {want}: each episode of L "
                "transitions is L rows and one final frame"
            )
        dtype = str(columns[name].dtype).removeprefix("torch.")
        if name in schema.tensor_keys and dtype not in schema.accepted_dtypes(name):
            raise ValueError(
                f"replay: column {name!r} is {dtype}, need {schema.accepted_dtypes(name)[0]}"
            )


def check_finite(schema: ReplaySchema, columns: Columns, rows: Tensor, ends: Sequence[int]) -> None:
    """Raise ValueError naming the first column, episode and row that is not finite in float32.

    One look at everything; the culprit is searched only if there is one.
    """
    features = {name: torch.as_tensor(columns[name]) for name in schema.feature_keys}
    if all(torch.isfinite(values).all() for values in (rows, *features.values())):
        return
    packed = {name: schema.view(rows, name) for name in schema.packed}
    for name, values in (packed | features).items():
        spoilt = ~torch.isfinite(values).reshape(len(values), -1).all(1)
        if spoilt.any():
            row = int(spoilt.nonzero()[0])
            episode = int(np.searchsorted(ends, row, side="right"))
            row -= ends[episode - 1] if episode else 0
            raise ValueError(
                f"replay: column {name!r} holds a NaN or an infinity in episode {episode}, row "
                f"{row}; nothing was stored, look at what produced it"
            )


def with_outcome(schema: ReplaySchema, rows: Tensor, gamma: float) -> Tensor:
    """Fill what is known at the end of an episode of L transitions, rows [L + 1, row_width].

    mc_return on the transitions; on the final frame end_of_task.
    """
    end_with_nothing(schema, rows)
    reward, terminated = schema.view(rows, "reward")[:-1], schema.view(rows, "terminated")[-2]
    schema.view(rows, MC_RETURN)[:-1] = bounds_to_go(reward, bool(terminated), gamma)
    schema.view(rows, END_OF_TASK)[-1] = terminated
    return rows


def end_with_nothing(schema: ReplaySchema, rows: Tensor) -> None:
    """No reward and no penalty on a final frame, so that a window may run past the end."""
    for name in ("reward", DISCRETE_PENALTY) if schema.has_penalty else ("reward",):
        schema.view(rows, name)[-1] = 0.0


def stretches(starts: Tensor, window: int) -> list[slice]:
    """The parts of an episode that its windows see.

    Args:
        starts: bool [L + 1], rows that start one; the final frame starts none.
        window: steps from its start to its last row, >= 1.

    Returns:
        Rows that follow each other; each part ends with a final frame of the windows in it.
    """
    starts = starts.reshape(-1).bool().clone()
    starts[-1] = False
    counted = pad(starts.cumsum(0), (window + 1, 0))
    seen = counted[window + 1 :] > counted[: -window - 1]  # a start `window` rows ago, or since
    edges = pad(seen.int(), (1, 1)).diff().nonzero().flatten().tolist()
    return [slice(*edge) for edge in zip(edges[::2], edges[1::2], strict=True)]


def cut(schema: ReplaySchema, rows: Tensor, part: slice) -> Tensor:
    """Part of an episode as `with_outcome` gives it, for a ring: its returns and its success are
    those of the whole, and a last row that is a transition there is the final frame here."""
    piece = rows[part].clone()
    end_with_nothing(schema, piece)
    if SUCCESS in schema.packed:
        schema.view(piece, SUCCESS)[:-1] = schema.view(rows, SUCCESS).max()
    return piece


def bounds_to_go(reward: Tensor, terminated: bool, gamma: float) -> Tensor:
    """What Cal-QL bounds Q by from below: `returns_to_go`, but of a failure that was cut, all of
    whose rewards are the same and negative, what failing for ever is worth.

    As the authors (`calc_return_to_go` in JaxCQL/replay_buffer.py of nakamotoo/Cal-QL), who give it
    to failures that terminated too: no value follows those here.
    """
    failed = bool((reward == reward[0]).all()) and float(reward[0]) < 0.0
    if failed and not terminated and gamma < 1.0:
        return torch.full_like(reward, float(reward[0]) / (1.0 - gamma))
    return returns_to_go(reward, gamma)


def returns_to_go(reward: np.ndarray | Tensor, gamma: float) -> Tensor:
    """G_t = r_t + gamma G_{t+1} of one episode's rewards [L], float32 [L]."""
    returns = accumulate(reversed(reward.tolist()), lambda later, now: now + gamma * later)
    return torch.tensor(list(returns), dtype=torch.float32).flip(0)
