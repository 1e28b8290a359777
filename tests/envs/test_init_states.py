"""Stored init states: readable by LIBERO and LeRobot, reproducible, and no door for code."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch

from envs import LiberoEnv, bootstrap, pld_tabletop
from envs.init_states import load_init_states, save_init_states
from envs.make_init_states import SEED, main, sample_init_states
from envs.suites import find_task


def test_liberos_and_lerobots_loaders_read_the_same_states():
    bootstrap.import_libero()
    pld_tabletop.register()
    from lerobot.envs.libero import get_task_init_states
    from libero.libero import benchmark

    suite = benchmark.get_benchmark("pld_tabletop")()
    for index in range(suite.n_tasks):
        ours = load_init_states(find_task("pld_tabletop", index).init_states_file)
        assert (len(ours), ours.dtype) == (150, np.float64)
        assert len(np.unique(ours, axis=0)) == 150
        np.testing.assert_array_equal(ours, suite.get_task_init_states(index))
        np.testing.assert_array_equal(ours, get_task_init_states(suite, index))


def test_the_command_writes_what_is_stored(tmp_path):
    main(["--count", "2", "--out", str(tmp_path)])
    for task in pld_tabletop.TASKS:
        again = load_init_states(tmp_path / f"{task}.pruned_init")
        stored = load_init_states(find_task("pld_tabletop", task).init_states_file)
        np.testing.assert_allclose(again, stored[:2], atol=1e-6)  # processors round differently
    others = sample_init_states(pld_tabletop.DEFAULT_TASK, 2, SEED + 999)
    assert (
        np.abs(others[0] - load_init_states(find_task("pld_tabletop").init_states_file)[0]).max()
        > 1e-3
    )


def test_states_are_placed_in_the_region_and_settled(env):
    observations = [env.reset(options={"init_state_id": i})[0] for i in range(0, 100, 10)]
    places = np.array([o["observation.environment_state"][16:19] for o in observations])
    center = env.expert_view()["region_center"]
    assert (np.abs(places[:, :2] - center) <= 0.081).all()
    assert places[:, :2].std(axis=0).min() > 0.02  # spread over the 16 cm square
    np.testing.assert_allclose(places[:, 2], 0.94, atol=0.002)  # standing on the table


def test_a_file_with_code_in_it_is_refused(tmp_path):
    path = tmp_path / "evil.pruned_init"
    marker = tmp_path / "ran"

    class Evil:
        def __reduce__(self):
            return (marker.touch, ())

    torch.save(Evil(), path)
    with pytest.raises(ValueError, match=r"evil.pruned_init is not a readable init-state file"):
        load_init_states(path)
    assert not marker.exists()


def test_bad_files_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none.pruned_init are missing.*make_init_states"):
        load_init_states(tmp_path / "none.pruned_init")
    path = tmp_path / "flat.pruned_init"
    torch.save(np.zeros(3), path)
    with pytest.raises(ValueError, match=r"flat.pruned_init must hold a float64 matrix"):
        load_init_states(path)
    path.write_bytes(pickle.dumps([1, 2])[:5])
    with pytest.raises(ValueError, match="not a readable"):
        load_init_states(path)


def test_states_of_another_scene_are_refused(tmp_path):
    env = LiberoEnv()
    path = tmp_path / "short.pruned_init"
    save_init_states(path, np.zeros((3, 12)))
    env._init_states = load_init_states(path)
    with pytest.raises(ValueError, match="rows of 12 numbers where this simulation needs 45"):
        env.reset(options={"init_state_id": 0})
    env.close()
