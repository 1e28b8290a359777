"""The file of a sweep: its points, and what is wrong with it in words."""

from __future__ import annotations

import dataclasses
import json
import pathlib

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from ray import tune

from pld_ray.config import ConfigError, TrackingConfig, TrainConfig
from pld_ray.config.acrlpd_train import ACRLPDTrainConfig
from pld_ray.config.file import dump_config, read_config
from pld_ray.jobs.placing import fit_at_once
from pld_ray.runs.layout import BASE_FILE, SWEEP_CONFIG_FILE
from pld_ray.sweep.config import describe, label, load_sweep
from pld_ray.sweep.folder import load_folder, write_record
from pld_ray.sweep.plan import (
    WithinBounds,
    bundles,
    check_begun,
    context,
    num_trials,
    param_space,
    rungs,
    scheduler,
    sweep_points,
    trainable,
)
from pld_ray.sweep.run import check_points
from pld_ray.sweep.space import points, values_drawn, with_points_type

SHIPPED = sorted(pathlib.Path("experiments/sweeps").glob("*.yaml"))


@pytest.fixture
def load(tmp_path):
    def from_mapping(mapping, *flags):
        file = tmp_path / "my_sweep.yaml"
        file.write_text(yaml.safe_dump(mapping, sort_keys=False))
        return load_sweep([str(file), *flags])

    return from_mapping


UTD = {"algorithm.utd": {"grid": [1, 2]}}


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.stem)
def test_shipped_sweeps_make_configurations_that_hold(file):
    sweep = load_sweep([str(file)])
    assert sweep.config.name == file.stem
    for point in sweep_points(sweep) if sweep.config.searcher == "random" else [{}]:
        sweep.trial_config(point)


def test_a_trial_reserves_each_replica_of_its_pool_once(load, tmp_path):
    pool = {
        "policy.placement": "pool",
        "policy.max_replicas": 2,
        "policy.num_cpus_per_replica": 0.5,
    }
    sweep = load({"set": {**pool, "runners.num_env_runners": 0}, "space": UTD})
    trial = trainable(sweep, context(sweep, tmp_path, "", ""))
    asked = trial.default_resource_request({"point": {"algorithm.utd": 1, "seed": 0}})
    assert asked.bundles == [{"CPU": 1.0}, {"CPU": 0.5}, {"CPU": 0.5}]


def test_points_are_the_whole_grid_with_every_variant_and_seed(load):
    sweep = load(
        {
            "space": {
                "algorithm.utd": {"grid": [1, 2]},
                "algorithm.num_critics, algorithm.num_subsample_critics": {
                    "grid": [[2, 2], [6, 2]]
                },
            },
            "variants": {"plain": {}, "no_probing": {"algorithm.use_probing": False}},
            "seeds": [3, 4],
        }
    )
    found = sweep_points(sweep)
    assert len(found) == num_trials(sweep) == 2 * 2 * 2 * 2
    assert len({describe(point) for point in found}) == 16
    config = sweep.trial_config(found[-1])
    assert (config.algorithm.utd, config.algorithm.num_critics, config.seed) == (2, 6, 4)
    assert config.algorithm.use_probing is False
    assert sweep.trial_config(found[0]).algorithm.use_probing is True
    seeds_of_a_point = [p for p in found if label(p) == label(found[0])]
    assert [p["seed"] for p in seeds_of_a_point] == [3, 4]


def test_draws_stay_the_same_over_grid_and_seeds_and_repeat_with_the_search_seed(load):
    space = {
        "algorithm.actor_lr": {"loguniform": ["1e-4", 1e-2]},  # YAML reads 1e-4 as text
        "algorithm.n_step": {"quniform": [1, 5, 1]},
        **UTD,
    }
    sweep = load({"space": space, "num_samples": 3, "seeds": [0, 1]})
    found = sweep_points(sweep)
    assert len(found) == 3 * 2 * 2
    draws = [(p["algorithm.actor_lr"], p["algorithm.n_step"]) for p in found]
    assert len(set(draws)) == 3
    assert draws == [draws[4 * (i // 4)] for i in range(12)]
    assert found == sweep_points(sweep)
    assert isinstance(sweep.trial_config(found[0]).algorithm.n_step, int)
    assert all(1e-4 <= rate <= 1e-2 for rate, _ in draws)


@given(
    low=st.floats(1e-6, 1.0),
    factor=st.floats(1.5, 1e3),
    count=st.integers(1, 8),
    seed=st.integers(0, 99),
)
def test_log_uniform_draws_stay_within_their_bounds(low, factor, count, seed):
    space = {"algorithm.tau": {"loguniform": [low, low * factor]}}
    drawn = [p["algorithm.tau"] for p in points(space, {}, [0], count, seed)]
    assert len(drawn) == count
    assert all(low * (1 - 1e-9) <= value <= low * factor * (1 + 1e-9) for value in drawn)


def test_numbers_take_the_kind_that_the_configuration_has():
    base = {"algorithm": {"utd": 1, "tau": 0.005, "use_probing": True}}
    changes = {"algorithm.utd": 2.0, "algorithm.tau": "1e-4", "algorithm.use_probing": False}
    typed = with_points_type(changes, base)
    assert typed == {"algorithm.utd": 2, "algorithm.tau": 1e-4, "algorithm.use_probing": False}
    assert isinstance(typed["algorithm.utd"], int)


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({"space": {"algorithm.utdd": {"grid": [1]}}}, "did you mean algorithm.utd"),
        ({"space": {}}, "nothing is swept"),
        ({"space": {"algorithm.utd": {"grid": []}}}, "grid needs a list of values"),
        ({"space": {"algorithm.utd": {"grd": [1]}}}, "'grd' is no domain"),
        ({"space": {"algorithm.utd": [1, 2]}}, "must be one domain"),
        ({"space": {"algorithm.tau": {"uniform": [0.2, 0.1]}}}, "low must be below high"),
        ({"space": {"algorithm.tau": {"loguniform": [0, 0.1]}}}, "low must be above 0"),
        ({"space": {"algorithm.tau": {"uniform": [0.2]}}}, "uniform needs \\[low, high\\]"),
        ({"space": {"algorithm.utd": {"quniform": [1, 3, 9]}}}, "the step must fit"),
        (
            {"space": {"algorithm.residual_scale": {"quniform": [0.1, 1.0, 0.25]}}},
            r"algorithm.residual_scale: quniform \[0.1, 1, 0.25\]: .* multiples of the step, such "
            r"as \[0.25, 1, 0.25\]",
        ),
        (
            {"space": {"algorithm.tau": {"qloguniform": [0.15, 0.39, 0.2]}}},
            "multiples of the step; take a smaller step",
        ),
        (
            {"space": UTD, "variants": {"slow": {"algorithm.utd": 0.5}}},
            "algorithm.utd is set in variants.slow and again in space, ",
        ),
        (
            {"space": {**UTD, "algorithm.utd, algorithm.n_step": {"grid": [[1, 2]]}}},
            r"algorithm.utd is set in space and again in space \(algorithm.utd, algorithm.n_step\)",
        ),
        (
            {
                "scheduler": {"type": "pbt", "mutations": UTD},
                "variants": {"slow": {"algorithm.utd": 0.5}},
            },
            "algorithm.utd is set in variants.slow and again in scheduler.mutations, ",
        ),
        (
            {
                "space": {"env.kwargs": {"grid": [{"a": 1}]}},
                "variants": {"b": {"env.kwargs.a": 2}},
            },
            "env.kwargs.a is set in variants.b and again in space",
        ),
        ({"space": {"seed": {"grid": [1, 2]}}}, "use seeds"),
        ({"space": UTD, "set": {"algorithm.gama": 0.9}}, "did you mean algorithm.gamma"),
        ({"space": UTD, "variants": {"a": {"env.tsk": "x"}}}, "did you mean env.task"),
        ({"space": UTD, "base": "nowhere.yaml"}, "base: nowhere.yaml: no such file and no preset"),
        ({"space": UTD, "seeds": []}, "seeds=\\[\\]: must be a list of 1 or more different"),
        ({"space": UTD, "scheduler": {"type": "ahsa"}}, "must be none, asha, hyperband or pbt"),
        ({"space": UTD, "scheduler": {"type": "pbt"}}, "mutations"),
        (
            {
                "scheduler": {
                    "type": "pbt",
                    "mutations": {"policy.path": {"choice": ["pld_tabletop_act", "other"]}},
                }
            },
            "policy.path cannot change within a trial",
        ),
        ({"space": UTD, "shceduler": {}}, "did you mean scheduler"),
        ({"space": UTD, "num_samples": 5}, "num_samples=5: nothing is drawn, grids and variants"),
        ({"variants": {"a": {}}, "num_samples": 2}, "num_samples=2: nothing is drawn"),
        ({"space": {"algorithm.utd": {"grid": [1, 1]}}}, r"grid \[1, 1\]: must be different"),
        (
            {"variants": {"a": {}, "b": {"algorithm.utd": 2}, "c": {}}},
            "variants.a and variants.c make the same changes",
        ),
        (
            {"space": {"algorithm.utd, algorithm.n_step": {"grid": [[1, 2], [1]]}}},
            "must be a list of 2 values",
        ),
    ],
)
def test_a_wrong_file_is_refused_with_what_to_mend(load, mapping, message):
    with pytest.raises(ConfigError, match=message):
        load(mapping)


def test_keys_of_the_file_may_be_dotted(load):
    sweep = load(
        {
            "scheduler.type": "asha",
            "scheduler": {"grace_steps": 3},
            "stop.env_steps": 100,
            "set.algorithm.gamma": 0.9,
            "space.algorithm.utd": {"grid": [1, 2]},
        }
    )
    assert (sweep.config.scheduler.type, sweep.config.scheduler.grace_steps) == ("asha", 3)
    assert sweep.config.stop.env_steps == 100
    assert sweep.base.algorithm.gamma == 0.9
    assert len(sweep_points(sweep)) == 2


def test_a_key_of_an_option_that_a_variant_sets_as_a_whole_is_kept(load):
    sweep = load(
        {
            "set": {"env.entry_point": "envs.point:PointEnv"},
            "space": {"env.kwargs.step_s": {"grid": [0.1]}},
            "variants": {"long": {"env.kwargs": {"episode_length": 9}}},
        }
    )
    config = sweep.trial_config(sweep_points(sweep)[0])
    assert config.env.kwargs == {"episode_length": 9, "step_s": 0.1}


@pytest.mark.parametrize(
    "bounds", [[0.25, 1.0, 0.25], [0.1, 0.7, 0.1], [0.3, 0.9, 0.3], [0.4, 0.6, 0.2]]
)
def test_bounds_that_are_multiples_of_the_step_are_drawn_from(load, bounds):
    sweep = load({"space": {"algorithm.residual_scale": {"quniform": bounds}}})
    (point,) = sweep_points(sweep)
    assert bounds[0] <= point["algorithm.residual_scale"] <= bounds[1] + 1e-9
    low, *_, high = values_drawn("quniform", bounds)
    assert [low, high] == pytest.approx(bounds[:2])


SEVERAL = [
    ({"choice": [1, 2, 2, 4]}, 3),
    ({"randint": [1, 5]}, 4),
    ({"qrandint": [1, 9, 4]}, 2),
    ({"qrandint": [1, 5, 1]}, 4),
    ({"quniform": [1, 4, 1]}, 4),
    ({"qloguniform": [1, 4, 1]}, 4),
]


@pytest.mark.parametrize(("domain", "count"), SEVERAL, ids=lambda value: str(value))
def test_nothing_is_drawn_twice_and_every_value_is_found(load, domain, count):
    space = {"algorithm.n_step": domain, "algorithm.utd": {"grid": [1, 2]}}
    for search_seed in range(5):
        sweep = load({"space": space, "num_samples": count, "search_seed": search_seed})
        assert len({label(point) for point in sweep_points(sweep)}) == 2 * count
    sweep = load({"space": space, "num_samples": count + 1})
    with pytest.raises(ConfigError, match=f"has {count} different .* num_samples={count}, or more"):
        sweep_points(sweep)


def test_a_value_too_rare_to_be_met_ends_in_a_sentence():
    space = {"algorithm.utd": {"choice": [1] * 99_999 + [2]}}
    with pytest.raises(ConfigError, match="num_samples=2: the space has 1 different draws"):
        points(space, {}, [0], 2, 0)


def test_a_population_may_begin_with_equal_draws(load):
    mutations = {"algorithm.utd": {"choice": [1, 2]}}
    sweep = load({"num_samples": 4, "scheduler": {"type": "pbt", "mutations": mutations}})
    assert len(sweep_points(sweep)) == 4


def test_a_population_may_begin_at_values_of_the_space(load):
    scheduler = {"type": "pbt", "mutations": {"algorithm.utd": {"uniform": [0.5, 16]}}}
    sweep = load({"space": {"algorithm.utd": {"grid": [1, 2, 4]}}, "scheduler": scheduler})
    assert [point["algorithm.utd"] for point in sweep_points(sweep)] == [1, 2, 4]


def test_a_sweep_that_drew_points_twice_goes_on_with_them(load, tmp_path):
    sweep = load({"space": {"algorithm.utd": {"choice": [1, 2]}}, "num_samples": 5})
    older = dataclasses.replace(sweep, distinct=False)
    drawn = sweep_points(older)
    assert len(drawn) == num_trials(older) == 5
    for begun in (older, load({"space": UTD})):
        (tmp_path / SWEEP_CONFIG_FILE).write_text(dump_config(begun.config))
        (tmp_path / BASE_FILE).write_text(dump_config(begun.base))
        write_record(begun, tmp_path)
        assert load_folder(tmp_path).distinct is begun.distinct
    record = json.loads((tmp_path / "sweep.json").read_text())
    del record["distinct"]  # as releases wrote that drew twice
    (tmp_path / "sweep.json").write_text(json.dumps(record))
    assert not load_folder(tmp_path).distinct
    check_begun(older, {f"t{i:04d}": point for i, point in enumerate(drawn)})


def test_paths_of_a_sweep_hold_in_every_folder_and_its_points_stay_as_typed(
    load, tmp_path, monkeypatch
):
    for name in ("a", "b", "demonstrations"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path)
    swept = {"policy.path": {"grid": ["a", "b", "owner/name"]}}
    sweep = load({"set": {"demo_path": ["demonstrations"]}, "space": swept})
    (tmp_path / SWEEP_CONFIG_FILE).write_text(dump_config(sweep.config))
    (tmp_path / BASE_FILE).write_text(dump_config(sweep.base))
    write_record(sweep, tmp_path)
    monkeypatch.chdir("/")
    again = load_folder(tmp_path)
    points = sweep_points(again)
    assert [point["policy.path"] for point in points] == ["a", "b", "owner/name"]
    configs = [again.trial_config(point) for point in points]
    assert configs == [sweep.trial_config(point) for point in points]
    assert configs[0].demo_path == [f"{tmp_path}/demonstrations"]
    assert [c.policy.path for c in configs] == [f"{tmp_path}/a", f"{tmp_path}/b", "owner/name"]
    record = json.loads((tmp_path / "sweep.json").read_text())
    del record["started_in"]  # of an older release, which kept them as typed
    (tmp_path / "sweep.json").write_text(json.dumps(record))
    assert load_folder(tmp_path).trial_config(points[0]).policy.path == "a"


def test_points_that_a_pretrained_critic_may_not_fit_are_each_looked_at(load, monkeypatch):
    looked = []
    monkeypatch.setattr("pld_ray.sweep.run.check_environment", looked.append)
    space = {"algorithm.reward_scale": {"grid": [1, 10]}, "algorithm.utd": {"grid": [1, 2]}}
    check_points(load({"space": space}))
    assert [config.algorithm.reward_scale for config in looked] == [1, 10]


def test_a_trial_goes_on_at_the_point_that_it_was_begun_at(load):
    sweep = load({"space": {"algorithm.utd": {"choice": [1, 2, 4]}}, "num_samples": 3})
    known = {f"t{i:04d}": dict(point) for i, point in enumerate(sweep_points(sweep))}
    check_begun(sweep, known)
    check_begun(sweep, {"t0001": {}, "t0009": {"algorithm.utd": 9}})
    known["t0001"]["algorithm.utd"] = known["t0000"]["algorithm.utd"]  # as older releases drew
    with pytest.raises(ConfigError, match=r"t0001 was begun with algorithm.utd=.* the release"):
        check_begun(sweep, known)
    mutations = {"algorithm.utd": {"choice": [1, 2]}}
    population = load({"scheduler": {"type": "pbt", "mutations": mutations}, "seeds": [0, 1]})
    check_begun(population, {"t0000": {"algorithm.utd": 1.2, "seed": 1}})  # t0001's, taken over


def test_a_value_that_no_trial_can_have_names_its_point(load):
    sweep = load({"space": {"algorithm.num_subsample_critics": {"grid": [1, 6]}}})
    with pytest.raises(ConfigError, match=r"critics=6, seed=0: .*between 1 and num_critics=5"):
        sweep.trial_config(sweep_points(sweep)[1])


def test_flags_override_the_file_and_the_dump_reads_back(load, tmp_path):
    sweep = load({"space": UTD}, "--scheduler.type=asha", "--seeds=[5,6]", "--name=other")
    assert sweep.config.name == "other"
    again = tmp_path / "again.yaml"
    again.write_text(dump_config(sweep.config))
    assert load_sweep([str(again)]).config == sweep.config
    assert load({"space": UTD}).config.name == "my_sweep"


def test_the_configuration_of_all_trials_can_be_changed_by_flags(load):
    sweep = load({"space": UTD}, "--set.algorithm.gamma=0.9", "--set.placement.check=false")
    assert (sweep.base.algorithm.gamma, sweep.base.placement.check) == (0.9, False)
    with pytest.raises(ConfigError, match=r"did you mean algorithm.gamma"):
        load({"space": UTD}, "--set.algorithm.gama=0.9")


def test_a_trial_reserves_its_process_and_its_runners(load):
    changes = {"runners.num_env_runners": 2, "runners.num_learners": 1}
    sweep = load({"space": UTD, "set": changes, "resources_per_trial": {"learning": 0.1}})
    assert bundles(sweep, sweep.base) == [
        {"CPU": 1.0, "learning": 0.1},
        {"CPU": 0.5},
        {"CPU": 0.5},
        {"CPU": 1.0},
    ]


def test_the_process_of_a_trial_that_learns_itself_reserves_its_gpu(load):
    changes = {"runners.num_env_runners": 1, "runners.num_gpus_per_learner": 0.25}
    sweep = load({"space": UTD, "set": changes})
    assert bundles(sweep, sweep.base) == [{"CPU": 1.0, "GPU": 0.25}, {"CPU": 0.5}]
    sweep = load({"space": UTD, "set": changes | {"runners.num_learners": 1}})
    assert bundles(sweep, sweep.base) == [{"CPU": 1.0}, {"CPU": 0.5}, {"CPU": 1.0, "GPU": 0.25}]


def test_processes_that_reserve_nothing_have_no_bundle(load):
    """Ray refuses one: the sweep would end before its first trial."""
    changes = {"runners.num_env_runners": 2, "runners.num_cpus_per_env_runner": 0.0}
    sweep = load({"space": UTD, "set": changes})
    assert bundles(sweep, sweep.base) == [{"CPU": 1.0}]
    tune.PlacementGroupFactory(bundles(sweep, sweep.base))


def test_asha_compares_at_powers_of_the_reduction_factor(load):
    sweep = load(
        {"space": UTD, "scheduler": {"type": "asha", "grace_steps": 1000, "reduction_factor": 3}}
    )
    assert rungs(sweep.config, 30_000) == [1000, 3000, 9000, 27_000]


def test_hyperband_lets_its_last_trial_play_the_evaluation_at_the_end(load):
    def longest(total_steps):
        settings = {"total_steps": total_steps, "evaluation.interval_steps": 5000}
        sweep = load({"space": UTD, "scheduler": {"type": "hyperband"}, "set": settings})
        return scheduler(sweep)._max_t_attr

    assert (longest(24_000), longest(25_000), longest(1000)) == (5, 5, 1)


def test_the_configuration_of_a_trial_that_nothing_tracks_is_read_back(load, tmp_path):
    sweep = load({"space": UTD})
    tracking = context(sweep, tmp_path, "", "")["tracking"]
    config = sweep.base
    config.tracking = TrackingConfig(**tracking)
    file = tmp_path / "config.yaml"
    file.write_text(dump_config(config))
    assert read_config(TrainConfig, file).tracking.uri is None


def test_a_population_begins_with_draws_of_what_mutates(load):
    mutations = {"algorithm.residual_scale": {"uniform": [0.25, 1.0]}}
    sweep = load({"num_samples": 4, "scheduler": {"type": "pbt", "mutations": mutations}})
    scales = [p["algorithm.residual_scale"] for p in sweep_points(sweep)]
    assert len(set(scales)) == 4
    assert all(0.25 <= scale <= 1.0 for scale in scales)
    (grid,) = param_space(sweep)["point"].values()
    assert [point["id"] for point in grid] == ["t0000", "t0001", "t0002", "t0003"]


@given(scale=st.floats(0.0, 2.0), factor=st.sampled_from([0.8, 1.2]))
def test_a_perturbed_value_stays_in_its_domain(scale, factor):
    explore = WithinBounds({"a": {"uniform": [0.25, 1.0]}, "b": {"choice": [1, 2]}})
    point = explore({"point": {"a": scale * factor, "b": 2, "seed": 0}})["point"]
    assert 0.25 <= point["a"] <= 1.0
    assert (point["b"], point["seed"]) == (2, 0)
    if 0.25 <= scale * factor <= 1.0:
        assert point["a"] == scale * factor


@given(cpus=st.lists(st.integers(0, 8), min_size=1, max_size=4), wanted=st.integers(1, 3))
def test_trials_at_once_are_what_the_nodes_hold(cpus, wanted):
    nodes = [{"CPU": float(n)} for n in cpus]
    assert fit_at_once([{"CPU": float(wanted)}], nodes) == sum(n // wanted for n in cpus)


def test_draws_are_plain_numbers(load):
    sweep = load({"space": {"algorithm.batch_size": {"choice": [64, 128]}}, "num_samples": 2})
    assert not any(isinstance(v, np.generic) for p in sweep_points(sweep) for v in p.values())


def test_a_sweep_of_q_chunking_varies_its_own_settings():
    sweep = load_sweep(["experiments/sweeps/chunked.yaml"])
    assert isinstance(sweep.base, ACRLPDTrainConfig)
    found = {
        name: sweep.trial_config({"variant": name, "seed": 1}) for name in sweep.config.variants
    }
    assert all(config.algorithm.bc_episodes == "all" for config in found.values())
    assert found["h1_n_step5"].algorithm.return_steps == 5
    assert found["bptt_bc1"].algorithm.improvement == "bptt"
    assert found["n1"].algorithm.acting_candidates == 1
    sweep.config.variants["wrong"] = {"algorithm.n_action_steps": 6}
    with pytest.raises(ConfigError, match="n_action_steps=6: must be at most horizon=5"):
        sweep.trial_config({"variant": "wrong", "seed": 0})
