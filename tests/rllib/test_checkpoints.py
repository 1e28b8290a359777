"""A checkpoint is whole, or it is refused: 500 random damages to one."""

from __future__ import annotations

import json
import logging
import pathlib
import pickle
import random
import re
import resource
import shutil

import pytest
import torch
from chaos import Planted
from local import local_learner

from pld_ray.config import TrainConfig
from pld_ray.files.manifest import MANIFEST_FILE, CheckpointError, add_to_manifest, check_manifest
from pld_ray.files.state_tree import save_tree
from pld_ray.jobs.training_loop import TrainingLoop
from pld_ray.replay import storage
from pld_ray.rllib.config import ResidualSACConfig
from pld_ray.rllib.progress import read_progress
from pld_ray.runs.layout import PROGRESS_FILE
from pld_ray.runs.run_dir import RunDir, RunError, trainer_state

pytestmark = pytest.mark.usefixtures("ray_cluster")


@pytest.fixture(scope="module")
def algorithm(ray_cluster):
    """Past its first updates."""
    config = (
        ResidualSACConfig()
        .environment(
            env_config={"entry_point": "envs.point:PointEnv", "kwargs": {"episode_length": 20}}
        )
        .base_policy(type="none")
        .env_runners(num_env_runners=0)
        .training(
            offline_episodes=0,
            warmup_steps=60,
            warmup_actions="random",
            batch_size=8,
            hidden_dims=[8, 8],
            sample_steps=40,
            actor_delay_updates=0,
        )
        .debugging(seed=3, log_level="ERROR")
    )
    config.min_sample_timesteps_per_iteration = 40
    config.evaluation(held_init_states=[0, 1])
    algorithm = config.build_algo()
    while not algorithm.updates:
        algorithm.train()
    yield algorithm
    algorithm.stop()


@pytest.fixture
def run(algorithm, tmp_path):
    run = RunDir(tmp_path / "run")
    run.save_checkpoint(algorithm.save_checkpoint, "step_000000040", {})
    algorithm.train()  # its rows are a second segment of the replay
    run.save_checkpoint(algorithm.save_checkpoint, "step_000000100", {"train_wall_s": 0.5})
    run.prune(1)
    return run


def state(algorithm):
    networks = local_learner(algorithm).networks
    return {name: value.clone() for name, value in networks.state_dict().items()}


def flip(path, rng, _):
    data = bytearray(path.read_bytes())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


def cut(path, rng, _):
    with path.open("r+b") as file:
        file.truncate(rng.randrange(path.stat().st_size))


def zero(path, rng, _):
    data = bytearray(path.read_bytes())
    start = rng.randrange(len(data))
    data[start : start + 64] = bytes(len(data[start : start + 64]))
    path.write_bytes(data)


def swap(path, rng, files):
    other = rng.choice(files)
    mine, theirs = path.read_bytes(), other.read_bytes()
    path.write_bytes(theirs)
    other.write_bytes(mine)


def rename_key(path, rng, _):
    """The same length, and still what its format asks for."""
    data = path.read_bytes()
    if words := sorted(set(re.findall(rb'"([a-z_]+)"', data))):
        word = rng.choice(words)
        path.write_bytes(data.replace(b'"' + word + b'"', b'"' + word[:-1] + b'X"'))


def delete(path, rng, _):
    path.unlink()


def refusal(algorithm, folder):
    """Why a checkpoint is not loaded."""
    try:
        algorithm.load_checkpoint(str(folder))
    except CheckpointError as error:
        return str(error)
    return ""


DAMAGES = [flip, cut, zero, swap, rename_key, delete]


def test_500_random_damages_are_all_found(run, algorithm, tmp_path):
    whole = run.latest_checkpoint()
    files = sorted(p.relative_to(whole) for p in whole.rglob("*") if p.is_file())
    assert {MANIFEST_FILE, PROGRESS_FILE, "trainer.json", "learner.json"} <= {p.name for p in files}
    assert len([p for p in files if p.name == "ring.json"]) == 2
    assert len([p for p in files if p.name.startswith("segment-")]) >= 2
    copy = tmp_path / "copy" / "checkpoints" / whole.name
    rng, missed, made = random.Random(0), [], 0
    content = {p: (whole / p).read_bytes() for p in files}
    shutil.copytree(whole, copy)
    before = state(algorithm)
    while made < 500:
        file, damage = files[made % len(files)], rng.choice(DAMAGES)
        damage(copy / file, rng, [copy / p for p in files])
        changed = [
            p for p in files if not (copy / p).exists() or (copy / p).read_bytes() != content[p]
        ]
        if not changed:
            continue  # zeros over zeros, a file swapped with its like
        made += 1
        error = refusal(algorithm, copy)
        if not any(str(copy / p) in error for p in changed):  # not refused, or another one blamed
            missed.append((file, damage.__name__, error))
        for p in changed:
            (copy / p).write_bytes(content[p])
    assert missed == []
    algorithm.load_checkpoint(str(copy))
    for name, value in state(algorithm).items():
        assert value.equal(before[name]), name


def test_the_manifest_is_of_every_file_and_hashes_no_segment_again(run):
    folder = run.latest_checkpoint()
    described = json.loads((folder / MANIFEST_FILE).read_text())["files"]
    there = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}
    assert described.keys() == there - {MANIFEST_FILE}
    for name, entry in described.items():
        assert ("sha256" in entry) == ("segment-" not in name), name
        assert entry["bytes"] == (folder / name).stat().st_size


def test_a_part_of_a_checkpoint_is_checked_alone(run):
    folder = run.latest_checkpoint()
    (folder / "trainer.json").write_text("{}")
    assert check_manifest(folder, only=["learner.json", "learner.safetensors"])
    with pytest.raises(CheckpointError, match=r"trainer\.json is damaged: it has 2 bytes"):
        check_manifest(folder)
    add_to_manifest(folder, "trainer.json")
    assert check_manifest(folder)


def test_a_checkpoint_of_an_older_release_is_taken_with_a_warning(run, algorithm, caplog):
    folder = run.latest_checkpoint()
    (folder / MANIFEST_FILE).unlink()
    with pytest.raises(CheckpointError, match=r"manifest\.json is damaged: it is missing"):
        algorithm.load_checkpoint(str(folder))
    file = folder / PROGRESS_FILE
    progress = json.loads(file.read_text())
    del progress["has_manifest"]
    file.write_text(json.dumps(progress))
    with caplog.at_level("WARNING", "pld_ray"):
        algorithm.load_checkpoint(str(folder))
    assert "a release without checksums" in caplog.text
    for content in ("", "[]", "3", "{", "[" * 20_000, '{"phase": "online"}'):
        file.write_text(content)
        with pytest.raises(CheckpointError, match=r"residual_sac\.json is damaged"):
            read_progress(folder)
        (folder / "trainer.json").write_text(content)
        if not content.startswith('{"'):
            with pytest.raises(CheckpointError, match=r"trainer\.json is damaged"):
                trainer_state(folder)
    with pytest.raises(CheckpointError, match="is not a pld-ray checkpoint"):
        algorithm.load_checkpoint(str(folder.parent))


def test_a_resume_goes_on_from_the_next_older_whole_checkpoint(run, algorithm, caplog):
    """The loop itself; the damaged ones are named, and `--checkpoint` of one names the next."""
    loop = TrainingLoop(TrainConfig(), run, algorithm, None, logging.getLogger("pld_ray"))
    old = run.latest_checkpoint()
    steps = algorithm.env_steps
    algorithm.train()
    newer = loop.save_periodic()
    algorithm.train()
    newest = loop.save("final")
    assert run.find_checkpoints() == [newest, newer, old]
    flip(newest / "learner.safetensors", random.Random(1), [])
    with pytest.raises(CheckpointError, match=rf"{newest}/learner.* --checkpoint={newer.name}"):
        loop.restore(newest)
    (newer / "replay" / "online" / "ring.json").unlink()
    with caplog.at_level("WARNING", "pld_ray"):
        assert loop.restore() == old
    for damaged in (newest / "learner.safetensors", newer / "replay/online/ring.json"):
        assert f"{damaged} is damaged" in caplog.text
    assert f"going on from the next older checkpoint, {old}" in caplog.text
    assert algorithm.env_steps == steps
    assert loop.state.train_wall_s == 0.5
    run.go_on_from(old)
    assert run.find_checkpoints() == [old]
    (old / "trainer.json").unlink()
    with pytest.raises(
        CheckpointError, match=r"trainer\.json is damaged.*; no checkpoint of .* whole"
    ):
        loop.restore()


def test_planted_pickles_are_never_opened(run, algorithm, tmp_path):
    """Neither RLlib's own, which nothing checks without a manifest, nor one in a tensor's place."""
    owned = tmp_path / "owned"
    pickle.loads(pickle.dumps(Planted(owned)))  # it does work
    owned.unlink()
    folder = run.latest_checkpoint()
    (folder / MANIFEST_FILE).unlink()
    progress = json.loads((folder / PROGRESS_FILE).read_text())
    del progress["has_manifest"]
    (folder / PROGRESS_FILE).write_text(json.dumps(progress))
    planted = list(folder.rglob("*.pkl"))
    assert len(planted) >= 10
    for file in planted:
        file.write_bytes(pickle.dumps(Planted(owned)))
    algorithm.load_checkpoint(str(folder))
    for file in (*folder.rglob("*.safetensors"), *folder.rglob("*.json")):
        kept = file.read_bytes()
        file.write_bytes(pickle.dumps(Planted(owned)))
        if file.name not in ("trainer.json", "rllib_checkpoint.json", "metadata.json"):
            assert refusal(algorithm, folder), file
        file.write_bytes(kept)
    assert not owned.exists()


@pytest.fixture
def limit_files():
    """Writes beyond a size fail as they do on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_inside_safetensors_is_one_sentence_and_leaves_nothing(
    run, algorithm, limit_files
):
    """RLlib's own files fit, `learner.safetensors`, which safetensors itself writes, does not."""
    good = run.latest_checkpoint()
    size = (good / "learner.safetensors").stat().st_size
    others = [p for p in good.rglob("*") if p.is_file() and p.suffix != ".safetensors"]
    assert max(p.stat().st_size for p in others) < size - 100
    limit_files(size - 100)
    with pytest.raises(RunError, match=r"cannot write checkpoint .*best: File too large"):
        run.save_checkpoint(algorithm.save_checkpoint, "best", {})
    assert [p.name for p in run.checkpoints.iterdir()] == [good.name]


def test_what_writes_safetensors_raises_what_the_system_says(tmp_path, limit_files, algorithm):
    tensors = state(algorithm)
    limit_files(64)
    for write in (
        lambda: save_tree(tmp_path / "state", tensors),
        lambda: storage.write_tensors(tmp_path, tensors),
    ):
        with pytest.raises(OSError, match="File too large"):
            write()
    assert not list(pathlib.Path(tmp_path).glob("*.partial*"))


def lifetime(result):
    updates = result["learners"]["__all_modules__"]["num_updates_lifetime"]
    return int(result["num_env_steps_sampled_lifetime"]), int(updates)


@pytest.mark.parametrize("address", ["{}", "file://{}"])
def test_rllibs_own_way_to_save_keeps_all_and_counts_on(address, algorithm, tmp_path):
    folder = tmp_path / "saved"
    assert algorithm.save_to_path(address.format(folder)) == str(folder)
    here = local_learner(algorithm)
    told, kept = [], (algorithm.env_steps, algorithm.updates, len(here.replay.online))
    config = algorithm.config.copy(copy_frozen=False)
    again = config.callbacks(on_checkpoint_loaded=lambda **how: told.append(how)).build_algo()
    try:
        again.restore_from_path(address.format(folder))
        there = local_learner(again)
        assert (again.env_steps, again.updates, len(there.replay.online)) == kept
        assert (again.phase, len(told)) == ("online", 1)
        for name, value in here.networks.state_dict().items():
            assert torch.equal(value, there.networks.state_dict()[name])
        assert lifetime(again.train()) == (again.env_steps, again.updates)
        again.load_checkpoint(str(folder))  # an older one, in place
        assert lifetime(again.train()) == (again.env_steps, again.updates)
        (folder / PROGRESS_FILE).unlink()
        with pytest.raises(CheckpointError):
            again.restore_from_path(str(folder))
    finally:
        again.stop()


def test_a_checkpoint_elsewhere_is_refused(algorithm):
    for save in (algorithm.save_to_path, algorithm.restore_from_path):
        with pytest.raises(ValueError, match="checkpoints here are folders of this machine"):
            save("mock:///bucket/run")
