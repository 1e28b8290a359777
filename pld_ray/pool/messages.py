"""What a pool's clients, replicas and controller tell each other."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import numpy as np

from pld_ray.policies import Prediction
from pld_ray.pool import wire

LEFTOVERS = "rtc.leftovers"
"""Name of the leftovers' array in a frame, where observations have theirs."""

Endpoint = tuple[str, int]
"""Host and port of a replica's socket."""


@dataclasses.dataclass(frozen=True)
class ReplicaTable:
    """The replicas that take requests, as the pool's controller knew them.

    Attributes:
        version: later tables compare greater, those of a restarted controller too.
        depths: replica name -> mean rows that waited there or were inferred.
        endpoints: replica name -> where it listens.
        note: why there are none, for error messages.
        accepting: False once the pool stops: no replica will come.
    """

    version: tuple[int, int] = (0, 0)
    depths: dict[str, float] = dataclasses.field(default_factory=dict)
    endpoints: dict[str, Endpoint] = dataclasses.field(default_factory=dict)
    note: str = ""
    accepting: bool = True


@dataclasses.dataclass
class Request:
    """B rows of one client, see `BasePolicy.infer`, and what it tells with them.

    Attributes:
        expires_in_s: a batch that starts later leaves the request out.
        attempt: how often it was asked before.
        missed_deadlines: of the client, since it last said so.
        table_version: of the newest table that the client has.
        weights: of a policy that learns, the version to answer with, and whether as the clone.
    """

    observations: dict[str, np.ndarray]
    tasks: list[str]
    env_ids: list[int]
    seeds: list[Any] | None = None
    leftovers: np.ndarray | None = None
    expires_in_s: float = float("inf")
    attempt: int = 0
    missed_deadlines: int = 0
    table_version: tuple[int, int] = (0, 0)
    weights: tuple[int, bool] | None = None

    @property
    def rows(self) -> int:
        return len(self.tasks)

    def encode(self, number: int) -> bytes:
        """A frame."""
        header = {**vars(self), "id": number}
        arrays = dict(header.pop("observations"))
        if (leftovers := header.pop("leftovers")) is not None:
            arrays[LEFTOVERS] = leftovers
        return wire.encode(header, arrays)

    @classmethod
    def decode(cls, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> Request:
        """What `encode` made, without its number."""
        leftovers = arrays.pop(LEFTOVERS, None)
        header = {**header, "table_version": tuple(header["table_version"])}
        if header["weights"] is not None:
            header["weights"] = tuple(header["weights"])
        del header["id"]
        return cls(observations=arrays, leftovers=leftovers, **header)


@dataclasses.dataclass
class Answer:
    """What became of a request.

    Attributes:
        outcome: without "answered" there is no prediction.
        other_rows: rows of others that waited or were inferred when its batch started.
        table: the newest one, if the client's is older.
    """

    outcome: Literal["answered", "draining", "not begun in time"]
    prediction: Prediction | None = None
    other_rows: int | None = None
    table: ReplicaTable | None = None

    def encode(self, number: int) -> bytes:
        """A frame."""
        table = None if self.table is None else vars(self.table)
        header = {"id": number, "outcome": self.outcome, "other_rows": self.other_rows}
        parts = {} if self.prediction is None else self.prediction._asdict()
        arrays = {name: part for name, part in parts.items() if part is not None}
        return wire.encode({**header, "table": table}, arrays)

    @classmethod
    def decode(cls, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> Answer:
        """What `encode` made, without its number; its arrays can be written to."""
        table = header["table"]
        if table is not None:
            endpoints = {name: (host, port) for name, (host, port) in table["endpoints"].items()}
            version = tuple(table["version"])
            table = ReplicaTable(**{**table, "version": version, "endpoints": endpoints})
        prediction = Prediction(**{k: v.copy() for k, v in arrays.items()}) if arrays else None
        return cls(header["outcome"], prediction, header["other_rows"], table)
