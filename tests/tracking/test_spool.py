"""The spool on a real disk, crashed at any byte, and what a receiver holds in the end."""

from __future__ import annotations

import json
import os
import pathlib
import tempfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pld_ray.tracking.spool import Spool


def point(step: int, **values: float) -> dict:
    return {"kind": "metrics", "time": 0, "step": step, "values": values or {"loss": 1.0}}


def records(spool: Spool) -> list:
    return [entry.record for entry in spool.pending()]


def send_all(spool: Spool) -> list:
    sent = []
    while batch := spool.pending():
        sent += [entry.record for entry in batch]
        spool.mark_sent(batch)
    return sent


def test_what_was_appended_waits_until_it_is_marked(tmp_path):
    spool = Spool(tmp_path / "points.jsonl", "run")
    spool.append(point(1))
    spool.append(point(2, loss=0.1, alpha=1e-300))
    assert spool.num_pending == 3
    first, second = spool.pending()
    spool.mark_sent([first])
    assert records(spool) == [point(2, loss=0.1, alpha=1e-300)]
    spool.close()
    again = Spool(tmp_path / "points.jsonl", "run")
    assert again.num_pending == 2
    assert records(again) == [second.record]
    assert again.ledger.points == {"loss": (2, 1), "alpha": (2, 1)}


def test_a_torn_line_is_removed_and_the_next_one_stands_alone(tmp_path):
    spool = Spool(tmp_path / "points.jsonl", "run")
    spool.append(point(1))
    spool.close()
    with (tmp_path / "points.jsonl").open("a") as file:
        file.write('{"kind": "metrics", "st')
    again = Spool(tmp_path / "points.jsonl", "run")
    again.append(point(2))
    assert records(again) == [point(1), point(2)]


def test_a_record_longer_than_a_read_is_read_whole(tmp_path):
    spool = Spool(tmp_path / "points.jsonl", "run")
    spool.append(point(1))
    spool.append(point(2, **{f"metric_{i}": float(i) for i in range(300)}))
    (short,) = spool.pending(max_bytes=100)
    spool.mark_sent([short])
    (long,) = spool.pending(max_bytes=100)
    assert long.record["values"]["metric_299"] == 299.0


def test_a_failed_write_leaves_nothing_behind(tmp_path, monkeypatch):
    spool = Spool(tmp_path / "points.jsonl", "run")
    spool.append(point(1))
    write = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda file, line: write(file, line[:7]))
        with pytest.raises(OSError, match="only 7 of"):
            spool.append(point(2))
    spool.append(point(3))
    assert records(spool) == [point(1), point(3)]
    assert spool.ledger.points == {"loss": (3, 1)}


def test_a_large_file_is_rewritten_without_what_was_sent(tmp_path):
    spool = Spool(tmp_path / "points.jsonl", "run", compact_bytes=2000)
    for step in range(200):
        spool.append(point(step))
        send_all(spool)
    assert (tmp_path / "points.jsonl").stat().st_size < 3000
    spool.append({"kind": "params", "values": {"seed": "0"}})
    spool.append(point(200))
    spool.close()
    again = Spool(tmp_path / "points.jsonl", "run", compact_bytes=2000)
    assert again.ledger.points == {"loss": (200, 1)}
    assert again.ledger.params == {"seed": "0"}
    assert len(send_all(again)) == 2


def test_the_spool_of_another_run_is_put_aside(tmp_path):
    spool = Spool(tmp_path / "points.jsonl", "one")
    spool.append(point(1))
    send_all(spool)
    spool.append(point(2))
    spool.close()
    other = Spool(tmp_path / "points.jsonl", "two")
    assert (other.num_pending, other.ledger.points) == (0, {})
    old = (tmp_path / "points.of_another_run.jsonl").read_text().splitlines()
    assert json.loads(old[2]) == point(2)


def test_a_damaged_spool_is_named_with_its_line(tmp_path):
    path = tmp_path / "points.jsonl"
    Spool(path, "run").append(point(1))
    header = path.read_text().splitlines()[0]
    path.write_text(f"{header}\n{{}}\n")
    with pytest.raises(ValueError, match=r"points\.jsonl, line 2, is no record"):
        Spool(path, "run")
    path.write_text(header.replace('"format_version": 1', '"format_version": 9') + "\n")
    with pytest.raises(ValueError, match="has format 9, this pld-ray reads 1"):
        Spool(path, "run")
    path.write_text("[]\n")
    with pytest.raises(ValueError, match="line 1, is no header"):
        Spool(path, "run")


class Receiver:
    """What MLflow does: points that are equal in all parts are one."""

    def __init__(self) -> None:
        self.points: list[tuple] = []

    def __call__(self, batch) -> None:
        for record in (entry.record for entry in batch):
            for key, value in record["values"].items():
                received = (key, record["step"], record["time"], value)
                if received not in self.points:
                    self.points.append(received)


class Training:
    """Logs `loss` at every step and `eval` at every third, in several lives."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path, self.receiver = path, Receiver()
        self.step = self.furthest = self.clock = 0

    def log_step(self, spool: Spool) -> None:
        self.step += 1
        self.clock += 1
        self.furthest = max(self.furthest, self.step)
        values = {"loss": float(self.clock)} | ({"eval": 0.5} if self.step % 3 == 0 else {})
        if new := spool.ledger.new_points(values, self.step):
            spool.append({"kind": "metrics", "time": self.clock, "step": self.step, "values": new})

    def live(self, num_steps: int, batches: list[tuple[int, bool]]) -> None:
        """Log and send; end early when a batch is sent and not noted."""
        spool = Spool(self.path, "run", compact_bytes=300)
        for number in range(num_steps):
            self.log_step(spool)
            size, noted = batches[number] if number < len(batches) else (0, True)
            if entries := spool.pending()[:size]:
                self.receiver(entries)
                if not noted:
                    break
                spool.mark_sent(entries)
        spool.close()

    def crash(self, cut: float, back: int) -> None:
        """Cut the file behind what was flushed, and go back to a checkpoint."""
        data = self.path.read_bytes()
        flushed = position = data.index(b"\n") + 1
        received = {(step, time) for _, step, time, _ in self.receiver.points}
        for line in data[position:].splitlines(True):
            position += len(line)
            record = json.loads(line)
            if (record["step"], record["time"]) in received:
                flushed = position  # it is flushed before it is sent
        self.path.write_bytes(data[: flushed + round(cut * (len(data) - flushed))])
        spool = Spool(self.path, "run")
        logged, _ = spool.ledger.points.get("loss", (0, 0))
        spool.close()
        self.step = max(0, min(self.step, logged) - back)

    def finish(self) -> None:
        spool = Spool(self.path, "run")
        while self.step < self.furthest:
            self.log_step(spool)
        while entries := spool.pending():
            self.receiver(entries)
            spool.mark_sent(entries)
        spool.close()


life = st.fixed_dictionaries(
    {
        "num_steps": st.integers(1, 12),
        "batches": st.lists(st.tuples(st.integers(1, 4), st.booleans()), max_size=6),
        "cut": st.floats(0, 1),
        "back": st.integers(0, 12),
    }
)


@settings(max_examples=60, deadline=None)
@given(lives=st.lists(life, min_size=1, max_size=4))
def test_whatever_byte_a_crash_leaves_every_step_arrives_exactly_once(lives):
    with tempfile.TemporaryDirectory() as folder:
        training = Training(pathlib.Path(folder) / "points.jsonl")
        for life in lives:
            training.live(life["num_steps"], life["batches"])
            training.crash(life["cut"], life["back"])
        training.finish()
    expected = [("eval", step) for step in range(3, training.furthest + 1, 3)]
    expected += [("loss", step) for step in range(1, training.furthest + 1)]
    assert sorted((key, step) for key, step, _, _ in training.receiver.points) == expected
