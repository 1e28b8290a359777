"""Journal and outbox on a real disk, crashed at any byte, and what a receiver holds in the end."""

from __future__ import annotations

import errno
import json
import pathlib
import resource
import tempfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pld_ray.runs.journal import TIME, Journal
from pld_ray.tracking.outbox import ARTIFACTS, METRICS, VALUES, Ledger, Outbox, num_unsent

QUEUES = (METRICS, VALUES)


def open_outbox(folder: pathlib.Path, run_id: str = "run") -> Outbox:
    return Outbox(folder, run_id, Journal(folder / "metrics.jsonl"))


def log(outbox: Outbox, step: int, **values: float) -> None:
    outbox.add_row(outbox.journal.append({"env_steps": step, **(values or {"loss": 1.0})}))


def points(records) -> list:
    return [(record["step"], record["values"]) for record in records]


def send_all(outbox: Outbox) -> list:
    sent = []
    while batch := outbox.next_batch(QUEUES):
        sent += batch
        outbox.mark_sent(batch)
    return sent


def test_what_was_logged_waits_until_it_is_marked(tmp_path):
    outbox = open_outbox(tmp_path)
    log(outbox, 1)
    log(outbox, 2, loss=0.1, alpha=1e-300)
    assert outbox.num_pending() == 3
    first, second = outbox.next_batch(QUEUES)
    outbox.mark_sent([first])
    assert points(outbox.next_batch(QUEUES)) == [(2, {"loss": 0.1, "alpha": 1e-300})]
    again = open_outbox(tmp_path)
    assert again.num_pending() == num_unsent(tmp_path, "run") == 2
    assert num_unsent(tmp_path, "another") == 0
    assert again.next_batch(QUEUES) == [second]


def test_a_row_that_no_process_lived_to_send_is_sent_by_the_next(tmp_path):
    outbox = open_outbox(tmp_path)
    outbox.journal.append({"env_steps": 1, "loss": 1.0})  # killed here
    assert points(send_all(open_outbox(tmp_path))) == [(1, {"loss": 1.0})]


def test_records_travel_in_the_order_in_which_they_were_logged(tmp_path):
    outbox = open_outbox(tmp_path)
    outbox.append("params", values={"seed": "0"})
    log(outbox, 1)
    outbox.append("artifact", path="a", folder=None)
    outbox.append("status", status="FINISHED", ended=0)
    assert [record["kind"] for record in send_all(outbox)] == ["params", "metrics", "status"]
    assert outbox.num_pending() == 1
    assert [record["path"] for record in outbox.next_batch((ARTIFACTS,))] == ["a"]
    assert open_outbox(tmp_path).params == {"seed": "0"}


def test_a_batch_is_no_larger_than_mlflow_takes(tmp_path):
    outbox = open_outbox(tmp_path)
    for step in range(4):
        log(outbox, step, **{f"metric_{i}": float(i) for i in range(400)})
    assert [len(outbox.next_batch(QUEUES)) for _ in range(1)] == [2]
    assert len(send_all(outbox)) == 4


@pytest.mark.parametrize("name", ["metrics.jsonl", "mlflow_outbox.jsonl"])
def test_a_torn_line_is_removed_and_the_next_one_stands_alone(name, tmp_path):
    outbox = open_outbox(tmp_path)
    log(outbox, 1)
    outbox.append("tags", values={"a": "1"})
    with (tmp_path / name).open("a") as file:
        file.write('{"kind": "metrics", "env_st')
    again = open_outbox(tmp_path)
    log(again, 2)
    again.append("tags", values={"b": "2"})
    sent = send_all(again)
    assert points(r for r in sent if r["kind"] == "metrics") == [
        (1, {"loss": 1.0}),
        (2, {"loss": 1.0}),
    ]
    assert [r["values"] for r in sent if r["kind"] == "tags"] == [{"a": "1"}, {"b": "2"}]


def test_a_failed_write_leaves_nothing_behind(tmp_path):
    outbox = open_outbox(tmp_path)
    log(outbox, 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (outbox.journal.path.stat().st_size + 7, hard))
    try:
        with pytest.raises(OSError, match="only 7 of") as error:
            log(outbox, 2)
        assert error.value.errno == errno.ENOSPC
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    log(outbox, 3)
    assert points(send_all(outbox)) == [(1, {"loss": 1.0}), (3, {"loss": 1.0})]
    assert [row["env_steps"] for row in outbox.journal.rows()] == [1, 3]


def test_another_mlflow_run_gets_the_whole_history_and_nothing_else_of_the_first(tmp_path):
    outbox = open_outbox(tmp_path, "one")
    log(outbox, 1)
    outbox.append("params", values={"seed": "0"})
    send_all(outbox)
    outbox.append("tags", values={"phase": "train"})
    other = open_outbox(tmp_path, "two")
    assert other.params == {}
    assert points(send_all(other)) == [(1, {"loss": 1.0})]


def test_a_value_that_is_not_finite_is_null_in_the_row_and_counted_everywhere(tmp_path):
    outbox = open_outbox(tmp_path)
    log(outbox, 1, loss=float("nan"), q=float("inf"), alpha=0.5)
    (row,) = outbox.journal.rows()
    assert (row["loss"], row["q"], row["tracking/non_finite"]) == (None, None, 2)
    assert points(send_all(outbox)) == [(1, {"alpha": 0.5, "tracking/non_finite": 2.0})]


def test_damage_is_named_with_its_line(tmp_path):
    log(open_outbox(tmp_path), 1)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write("{}{\n")
    with pytest.raises(ValueError, match=r"metrics\.jsonl, line 2 is no report"):
        open_outbox(tmp_path)
    (tmp_path / "metrics.jsonl").unlink()
    (tmp_path / "mlflow_outbox.jsonl").write_text("[]\n")
    with pytest.raises(ValueError, match=r"mlflow_outbox\.jsonl, line 1 is no record"):
        open_outbox(tmp_path)
    (tmp_path / "mlflow_outbox.jsonl").unlink()
    (tmp_path / "mlflow_sent.json").write_text("{")
    assert points(send_all(open_outbox(tmp_path))) == []


def test_rows_of_an_older_release_are_not_sent_again(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"env_steps": 10, "loss": 1.0}\n')
    outbox = open_outbox(tmp_path)
    log(outbox, 10)  # a restart repeats it
    log(outbox, 20)
    assert points(send_all(outbox)) == [(20, {"loss": 1.0})]


class Receiver:
    """What MLflow does: points that are equal in all parts are one."""

    def __init__(self) -> None:
        self.points: list[tuple] = []

    def __call__(self, batch) -> None:
        for record in batch:
            for key, value in record["values"].items():
                received = (key, record["step"], record["time"], value)
                if received not in self.points:
                    self.points.append(received)


class Training:
    """Logs `loss` at every step and `eval` at every third, in several lives."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder, self.receiver = folder, Receiver()
        self.step = self.furthest = self.clock = 0

    def log_step(self, outbox: Outbox) -> None:
        self.step += 1
        self.clock += 1
        self.furthest = max(self.furthest, self.step)
        evaluation = {"eval": 0.5} if self.step % 3 == 0 else {}
        log(outbox, self.step, loss=float(self.clock), **evaluation)

    def live(self, num_steps: int, batches: list[tuple[int, bool]]) -> None:
        """Go on from the checkpoint, log and send; end early when a batch is not noted."""
        outbox = open_outbox(self.folder)
        outbox.journal.restore(self.step)
        outbox.reread()
        for number in range(num_steps):
            self.log_step(outbox)
            size, noted = batches[number] if number < len(batches) else (0, True)
            if records := outbox.next_batch(QUEUES)[:size]:
                self.receiver(records)
                if not noted:
                    break
                outbox.mark_sent(records)

    def crash(self, cut: float, back: int, while_restoring: bool) -> None:
        """Cut the line that was being written, unless it was sent; go back to a checkpoint.

        Lines before it are on the disk: `append` has returned.
        """
        path = self.folder / "metrics.jsonl"
        data = path.read_bytes()
        start = data.rfind(b"\n", 0, -1) + 1
        received = {time for _, _, time, _ in self.receiver.points}
        if data[start:] and json.loads(data[start:])[TIME] not in received:
            path.write_bytes(data[: start + round(cut * (len(data) - start))])
        journal = Journal(path)
        logged = max((row["env_steps"] for row in journal.rows()), default=0)
        self.step = max(0, min(self.step, logged) - back)
        if while_restoring:
            before = path.read_bytes()
            journal.restore(self.step)
            path.write_bytes(before)

    def finish(self) -> None:
        unsent = num_unsent(self.folder, "run")
        outbox = open_outbox(self.folder)
        assert unsent == outbox.num_pending()
        outbox.journal.restore(self.step)
        outbox.reread()
        while self.step < self.furthest:
            self.log_step(outbox)
        while records := outbox.next_batch(QUEUES):
            self.receiver(records)
            outbox.mark_sent(records)


life = st.fixed_dictionaries(
    {
        "num_steps": st.integers(1, 12),
        "batches": st.lists(st.tuples(st.integers(1, 4), st.booleans()), max_size=6),
        "cut": st.floats(0, 1),
        "back": st.integers(0, 12),
        "while_restoring": st.booleans(),
    }
)


@settings(max_examples=60)
@given(lives=st.lists(life, min_size=1, max_size=4))
def test_whatever_byte_a_crash_leaves_every_step_arrives_exactly_once(lives):
    with tempfile.TemporaryDirectory() as folder:
        training = Training(pathlib.Path(folder))
        for life in lives:
            training.live(life["num_steps"], life["batches"])
            training.crash(life["cut"], life["back"], life["while_restoring"])
        training.finish()
        history = [
            row["env_steps"] for row in Journal(pathlib.Path(folder) / "metrics.jsonl").rows()
        ]
    expected = [("eval", step) for step in range(3, training.furthest + 1, 3)]
    expected += [("loss", step) for step in range(1, training.furthest + 1)]
    assert sorted((key, step) for key, step, _, _ in training.receiver.points) == expected
    assert history == list(range(1, training.furthest + 1))


# --- what a restart leaves out ------------------------------------------------------------------


def test_everything_passes_before_a_restart():
    ledger = Ledger()
    assert ledger.new_points({"a": 1.0}, 10) == {"a": 1.0}
    assert ledger.new_points({"a": 2.0}, 10) == {"a": 2.0}
    assert ledger.new_points({"a": 3.0}, 5) == {"a": 3.0}  # an evaluation may end late


def test_after_a_restart_each_metric_passes_beyond_what_it_had_reached():
    ledger = Ledger()
    ledger.new_points({"loss": 1.0, "eval": 0.5}, 10)
    ledger.new_points({"loss": 1.0}, 20)
    ledger.restart()
    assert ledger.new_points({"loss": 2.0, "eval": 0.6}, 10) == {}
    assert ledger.new_points({"loss": 2.0, "eval": 0.6}, 15) == {"eval": 0.6}
    assert ledger.new_points({"loss": 2.0, "new": 1.0}, 20) == {"new": 1.0}
    assert ledger.new_points({"loss": 2.0}, 21) == {"loss": 2.0}


def test_several_points_at_one_step_are_counted():
    ledger = Ledger()
    for value in (1.0, 2.0):
        ledger.new_points({"calql": value}, 0)
    ledger = Ledger(ledger.points)
    ledger.restart()
    passed = [ledger.new_points({"calql": value}, 0) for value in (1.0, 2.0, 3.0)]
    assert passed == [{}, {}, {"calql": 3.0}]


def test_a_second_restart_counts_from_all_that_was_logged():
    ledger = Ledger()
    ledger.new_points({"loss": 1.0}, 10)
    ledger.restart()
    ledger.new_points({"loss": 1.0}, 30)
    ledger.restart()
    assert ledger.new_points({"loss": 1.0}, 20) == {}
    assert ledger.new_points({"loss": 1.0}, 40) == {"loss": 1.0}


def test_what_a_restart_gives_up_is_logged_anew():
    ledger = Ledger()
    ledger.new_points({"loss": 1.0, "eval": 0.5}, 10)
    ledger.new_points({"loss": 1.0}, 30)
    ledger.restart(20)
    for step in (25, 30):
        assert ledger.new_points({"loss": 2.0}, step) == {"loss": 2.0}
    ledger.restart()  # killed, and on from its newest checkpoint
    assert ledger.new_points({"loss": 3.0, "eval": 0.6}, 30) == {"eval": 0.6}
    assert ledger.new_points({"loss": 3.0}, 40) == {"loss": 3.0}


# --- batches ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["params", "tags"])
def test_no_more_parameters_or_tags_are_sent_at_once_than_mlflow_takes(tmp_path, kind):
    outbox = open_outbox(tmp_path)
    for first in (0, 60, 100):
        outbox.append(kind, values={f"name_{first + k}": "x" for k in range(40)})
    assert [len(record["values"]) for record in outbox.next_batch(QUEUES)] == [40, 40]
    assert len(send_all(outbox)) == 3


def test_a_batch_that_is_marked_late_does_not_wait_again(tmp_path):
    outbox = open_outbox(tmp_path)
    log(outbox, 1)
    log(outbox, 2)
    first, second = outbox.next_batch(QUEUES)
    for record in (second, first):
        outbox.mark_sent([record])
        assert open_outbox(tmp_path).num_pending() == 0
