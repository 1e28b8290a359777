"""Records on their way to a tracking server: appended to a file, sent later, never lost."""

from __future__ import annotations

import json
import os
import pathlib
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pld_ray.files.atomic import write_atomically
from pld_ray.tracking.ledger import Ledger

FORMAT_VERSION = 1
COMPACT_BYTES = 16_000_000
"""A file with so many bytes that were sent is rewritten without them."""
READ_BYTES = 1_000_000

Record = Mapping[str, Any]
"""JSON; `kind` says what it is, `values` holds several values of that kind."""


@dataclass(frozen=True)
class Entry:
    """A record of the file and where it ends."""

    record: Record
    end: int
    """Position after it, in bytes written since the spool began."""


class Spool:
    """An append-only file of JSON records and the position up to which they were sent.

    Line 1 is a header: `start`, the position of the first record of the file, and the ledger of
    everything before it. The sent position is a file of its own, written after each batch: a crash
    in between sends a batch twice, which the receiver has to take as once. A line that a crash left
    torn is removed when the file is opened. `append` may be called while another thread reads and
    marks.

    Args:
        path: the file; made, with its folder, if it is not there.
        run_id: MLflow run that the records belong to. A file of another run is put aside.
        past: what was logged before the file was made, on another machine.
        compact_bytes: see `COMPACT_BYTES`.

    Raises:
        ValueError: the file is damaged in the middle, or of a newer format.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        run_id: str,
        past: Ledger | None = None,
        compact_bytes: int = COMPACT_BYTES,
    ) -> None:
        self.path, self.run_id = pathlib.Path(path), run_id
        self.sent_path = self.path.with_suffix(".sent.json")
        self._compact_bytes = compact_bytes
        self._lock = threading.Lock()
        self.num_pending = 0
        """Values that wait to be sent."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if not belongs_to(self.path, run_id):
            if self.path.is_file():
                os.replace(self.path, self.path.with_suffix(".of_another_run.jsonl"))
            self.sent_path.unlink(missing_ok=True)
            write_atomically(self.path, self._header_line(0, past or Ledger()))
        self._load()

    # --- opening ---------------------------------------------------------------------------------

    def _header_line(self, start: int, ledger: Ledger) -> str:
        header = {"kind": "header", "format_version": FORMAT_VERSION, "run_id": self.run_id}
        return json.dumps({**header, "start": start, "ledger": ledger.state_dict()}) + "\n"

    def _load(self) -> None:
        header = read_header(self.path)
        data = self.path.read_bytes()
        whole = data.rfind(b"\n") + 1
        self._start, self._header_bytes = int(header["start"]), data.index(b"\n") + 1
        self.ledger = Ledger(header["ledger"])
        self._file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        os.ftruncate(self._file, whole)
        self.end = self._start + whole - self._header_bytes
        self.sent = min(max(self._read_sent(), self._start), self.end)
        position = self._start
        for number, line in enumerate(data[self._header_bytes : whole].splitlines(True), start=2):
            try:
                record = json.loads(line)
                self.ledger.note(record)
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(
                    f"{self.path}, line {number}, is no record ({error!r}): delete that line"
                ) from error
            if position < self.sent < position + len(line):
                self.sent = position
            position += len(line)
            if position > self.sent:
                self.num_pending += weight(record)
        self.ledger.restore()

    def _read_sent(self) -> int:
        try:
            return int(json.loads(self.sent_path.read_text())["sent"])
        except (OSError, ValueError, KeyError, TypeError):
            return 0  # sent again, which the receiver ignores

    # --- writing ---------------------------------------------------------------------------------

    def append(self, record: Record) -> None:
        """Write one record.

        Raises:
            OSError: it cannot be written; nothing of it stays.
        """
        line = (json.dumps(record, allow_nan=False) + "\n").encode()
        with self._lock:
            size = self.end - self._start + self._header_bytes
            try:
                written = os.write(self._file, line)
                if written < len(line):
                    raise OSError(f"{self.path}: only {written} of {len(line)} bytes were written")
            except OSError:
                os.ftruncate(self._file, size)
                raise
            self.end += len(line)
            self.num_pending += weight(record)
            self.ledger.note(record)

    def sync(self) -> None:
        """Flush to the disk: what was sent must not be unknown after a power failure."""
        os.fsync(self._file)

    # --- sending ---------------------------------------------------------------------------------

    def pending(self, max_bytes: int = READ_BYTES) -> list[Entry]:
        """The oldest records that were not sent: `max_bytes` of them, but at least one."""
        with self._lock:
            start, stop = self.sent, self.end
            offset = self._header_bytes - self._start
            file = self._file
        entries: list[Entry] = []
        while start < stop and not entries:
            data = os.pread(file, min(max_bytes, stop - start), start + offset)
            for line in data[: data.rfind(b"\n") + 1].splitlines(True):
                start += len(line)
                entries.append(Entry(json.loads(line), start))
            max_bytes *= 2  # for a line that is longer
        return entries

    def mark_sent(self, entries: list[Entry]) -> None:
        """Remember that these, the oldest ones, were sent.

        Raises:
            OSError: it cannot be written; they are sent again after a restart.
        """
        with self._lock:
            self.sent = entries[-1].end
            self.num_pending -= sum(weight(entry.record) for entry in entries)
        write_atomically(self.sent_path, json.dumps({"sent": self.sent}) + "\n")
        if self.sent - self._start >= self._compact_bytes:
            self._compact()

    def _compact(self) -> None:
        """Rewrite the file without what was sent; the ledger of that goes into the header."""
        with self._lock:
            if self.sent != self.end:
                return  # at a batch that leaves nothing behind
            header = self._header_line(self.sent, self.ledger).encode()
            write_atomically(self.path, header)
            os.close(self._file)
            self._file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
            self._start, self._header_bytes = self.sent, len(header)

    def close(self) -> None:
        """Close the file; nothing may be appended any more."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def weight(record: Record) -> int:
    """Values of a record."""
    return len(record["values"]) if "values" in record else 1


def belongs_to(path: pathlib.Path, run_id: str) -> bool:
    """Whether `path` is the spool of this run.

    Raises:
        ValueError: it is no spool.
    """
    return path.is_file() and read_header(path)["run_id"] == run_id


def read_header(path: pathlib.Path) -> dict[str, Any]:
    """Line 1 of a spool.

    Raises:
        ValueError: it is none of ours, or of another format.
    """
    with path.open("rb") as file:
        line = file.readline()
    try:
        header = json.loads(line)
        version, _ = header["format_version"], header["run_id"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}, line 1, is no header of a spool: move the file away") from error
    if version != FORMAT_VERSION:
        raise ValueError(
            f"{path} has format {version}, this pld-ray reads {FORMAT_VERSION}: send it with the "
            "pld-ray that wrote it"
        )
    return header
