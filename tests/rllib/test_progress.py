"""Counting what was sampled, and the file that keeps the counts."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger

from pld_ray.algorithm.residual.schedules import ResidualScaleSchedule
from pld_ray.config import TrainConfig
from pld_ray.config.residual_sac import ResidualSACParams
from pld_ray.files.manifest import CheckpointError, write_manifest
from pld_ray.rllib.intake import fetch_episodes
from pld_ray.rllib.progress import Progress, read_progress
from pld_ray.rllib.rounds import Rounds
from pld_ray.rllib.runners import to_store
from pld_ray.rollout.episode import EpisodeSummary
from pld_ray.rollout.messages import EpisodeBatch
from pld_ray.runs.layout import PROGRESS_FILE


def make_progress(params=None, **counters):
    return Progress(ResidualScaleSchedule(params or ResidualSACParams()), **counters)


def batch_of(episodes):
    stored = [e.length - e.probe_steps for e in episodes if e.residual_acted]
    rows = {"reward": np.zeros(sum(stored) + len(stored))}
    return EpisodeBatch(rows, stored, episodes, sum(e.length for e in episodes))


def test_an_episode_that_is_too_stale_is_counted_and_not_stored():
    counters = {"env_steps": 50, "episodes": 4, "stored_steps": 40, "update_debt": 0.5}
    progress = make_progress(utd=0.5, max_staleness=100, updates=1000, **counters)
    episodes = [EpisodeSummary(True, 3, 0, weights_updates=n) for n in (899, 900)]
    metrics = MetricsLogger()
    (fed,) = to_store([batch_of(episodes)], progress, metrics)
    assert fed.skip == [0]
    assert fed.kept == [3]
    assert len(fetch_episodes(fed)["reward"]) == 4
    gained = {name: getattr(progress, name) - before for name, before in counters.items()}
    assert gained == {"env_steps": 6, "episodes": 2, "stored_steps": 3, "update_debt": 1.5}
    assert metrics.peek("num_episodes_too_stale") == 1
    assert progress.take_debt() == 2
    assert progress.update_debt == 0


def test_a_long_episode_is_stored_unless_a_limit_is_set_and_a_limit_says_what_it_does(caplog):
    """With many environments an episode ages by their number times its own length."""
    caplog.set_level("WARNING", logger="pld_ray")
    old = batch_of([EpisodeSummary(False, 520, 0, weights_updates=0)])
    stored = {}
    for limit in (TrainConfig().runners.max_staleness, 50_000):
        progress = make_progress(utd=2.0, max_staleness=limit, updates=2 * 96 * 520)
        for _ in range(3):
            to_store([old], progress, MetricsLogger())
        stored[limit] = progress.stored_steps
    assert stored == {None: 3 * 520, 50_000: 0}
    (told,) = [record.getMessage() for record in caplog.records]
    assert "99840 updates old is not stored: max_staleness=50000" in told


def test_an_episode_that_ended_while_probing_says_nothing_about_the_residual():
    params = ResidualSACParams(
        residual_scale_schedule="success", residual_scale_init=0.1, residual_scale_success=0.5
    )
    progress, metrics = make_progress(params, utd=1.0), MetricsLogger()

    def count(success, length, probe_steps, num):
        episodes = [EpisodeSummary(success, length, probe_steps)] * num
        to_store([batch_of(episodes)], progress, metrics)

    count(True, length=3, probe_steps=3, num=20)  # the base policy's own successes
    assert progress.schedule.value(0) == 0.1
    assert "train/success_rate" not in progress.recent_metrics()
    count(False, length=8, probe_steps=3, num=5)
    assert progress.episodes == 25
    assert progress.stored_steps == 25
    recent = progress.recent_metrics()
    assert recent["train/success_rate"] == 0
    assert recent["train/episode_len_mean"] == (20 * 3 + 5 * 8) / 25
    count(True, length=8, probe_steps=3, num=15)
    assert progress.recent_metrics()["train/success_rate"] == 15 / 20
    assert progress.schedule.value(0) == pytest.approx(0.2)  # one window of 20, 15 successes


def test_late_steps_and_a_judge_that_errs_are_counted(tmp_path):
    progress, metrics = make_progress(utd=1.0), MetricsLogger()
    verdicts = ((True, True), (True, False), (False, False), (False, None))
    episodes = [EpisodeSummary(s, 5, 0, true_success=true) for s, true in verdicts]
    timed = {"control_steps": 19, "late_steps": 2}
    to_store([replace(batch_of(episodes[:2]), **timed)], progress, metrics)
    to_store([replace(batch_of(episodes[2:]), control_steps=1)], progress, metrics)
    progress.save(tmp_path)
    write_manifest(tmp_path)
    again = make_progress(utd=1.0)
    again.restore(read_progress(tmp_path))
    for each in (progress, again):
        found = each.recent_metrics()
        assert found["train/late_step_share"] == 2 / 20
        assert found["train/late_steps"] == 2
        assert found["train/classifier_disagreement"] == 1 / 3
    assert not {"train/late_steps", "train/classifier_disagreement"} & set(
        make_progress(utd=1.0).recent_metrics()
    )


def test_steps_that_died_with_their_node_are_owed_no_updates():
    progress, metrics = make_progress(utd=0.5, stored_steps=40, update_debt=3.0), MetricsLogger()
    progress.write_off(4, metrics)
    assert (progress.stored_steps, progress.update_debt) == (36, 1.0)
    assert metrics.peek("num_env_steps_lost") == 4


def test_the_file_brings_every_counter_back_and_an_older_one_those_that_it_has(tmp_path):
    progress = make_progress(utd=2.0, phase="online", iteration=3, updates=7, next_shard=5)
    to_store([batch_of([EpisodeSummary(True, 8, 3)])], progress, MetricsLogger())
    progress.save(tmp_path)
    write_manifest(tmp_path)
    saved = read_progress(tmp_path)
    other = make_progress(utd=2.0)
    other.restore(saved)
    unlike = {n for n, v in vars(progress).items() if n != "schedule" and v != getattr(other, n)}
    assert unlike == set()
    assert other.schedule.state_dict() == progress.schedule.state_dict()
    for name in ("episodes", "stored_steps", "recent_episodes", "calql_done", "next_shard"):
        del saved[name]
    older = make_progress(utd=2.0)
    older.restore(saved)
    assert (older.updates, older.episodes, older.recent_episodes) == (7, 0, [])
    (tmp_path / PROGRESS_FILE).write_text(json.dumps({"phase": "online"}))
    with pytest.raises(CheckpointError, match=r"residual_sac\.json is damaged"):
        read_progress(tmp_path)


def test_what_a_person_achieved_does_not_enlarge_the_residual():
    params = ResidualSACParams(residual_scale_schedule="success", residual_scale_init=0.1)
    progress = make_progress(params, utd=1.0)
    progress.count([EpisodeSummary(True, 8, 0, intervention_steps=2)] * 20, 160)
    assert progress.residual_scale == 0.1


def test_the_schedule_begins_after_the_collection():
    params = ResidualSACParams(
        residual_scale_schedule="linear", residual_scale_init=0.0, residual_scale_steps=100
    )
    progress = make_progress(params, utd=1.0, env_steps=1000, collection_env_steps=1000)
    assert progress.residual_scale == 0.0
    progress.count([], 50)
    assert progress.residual_scale == pytest.approx(params.residual_scale / 2)


def test_updates_that_were_made_for_lost_steps_are_made_up_for():
    progress = make_progress(utd=1.0)
    progress.owe(8)
    assert progress.take_debt() == 8
    progress.write_off(4, MetricsLogger())
    assert progress.take_debt() == 0
    progress.owe(6)
    assert progress.take_debt() == 2


def test_of_a_debt_a_part_can_be_taken():
    progress = make_progress(utd=0.5)
    progress.owe(11)
    assert [progress.take_debt(at_most=n) for n in (0, 2, 7)] == [0, 2, 3]
    assert progress.update_debt == 0.5


def one_after_the_other(pipelined, rounds=1):
    """What rounds do, in their order, and the progress after them."""
    told = []
    progress = make_progress(utd=1.0, update_debt=3.0, updates=10, published_updates=7)

    def deliver(request, progress, learners):
        told.append("deliver")
        progress.count([], 20)
        progress.owe(5)

    runners = SimpleNamespace(
        request=lambda **how: told.append(how),
        deliver=deliver,
        publish=lambda learners: told.append("publish"),
    )
    learners = SimpleNamespace(
        can_update=True,
        train=lambda updates, scale: told.append(updates),
        set_residual_scale=lambda scale: told.append("scale"),
    )
    for _ in range(rounds):
        Rounds(pipelined, progress, learners, runners).step()
    return told, progress


def asked(updates, env_steps):
    return {"weights_updates": updates, "intervene": True, "env_steps": env_steps}


def test_a_round_learns_from_what_it_has_sampled():
    told, progress = one_after_the_other(pipelined=False, rounds=2)
    first = [asked(7, 0), "deliver", 8, "scale", "publish"]
    assert told == [*first, asked(18, 20), "deliver", 5, "scale", "publish"]
    assert (progress.updates, progress.published_updates, progress.update_debt) == (23, 23, 0)


def test_a_pipelined_round_learns_while_it_samples_from_the_one_before():
    told, progress = one_after_the_other(pipelined=True, rounds=2)
    first = [asked(7, 0), 3, "deliver", "scale", "publish"]
    assert told == [*first, asked(13, 20), 5, "deliver", "scale", "publish"]
    assert (progress.updates, progress.published_updates, progress.update_debt) == (18, 18, 5)


def test_nothing_is_learnt_without_a_debt():
    told = []
    runners = SimpleNamespace(request=lambda **how: None, deliver=lambda *_: None)
    runners.publish = lambda learners: None
    learners = SimpleNamespace(can_update=True, set_residual_scale=lambda scale: None)
    learners.train = lambda *_: told.append("train")
    Rounds(False, make_progress(utd=1.0, update_debt=0.5), learners, runners).step()
    assert told == []
