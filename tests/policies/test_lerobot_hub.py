"""Where policies and tokenisers come from: this machine, or the hub if it was asked for."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tiny_policies import VISION_LANGUAGE, make_observations, make_tasks

from pld_ray.config import ConfigError, TrainConfig
from pld_ray.config.file import load_config
from pld_ray.config.start_check import check_start
from pld_ray.policies.checkpoint import EMBEDDED_ACT, open_checkpoint

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def put_in_cache(cache: Path, name: str, directory: Path) -> None:
    """A snapshot as the hub's client lays it out."""
    repository = cache / f"models--{name.replace('/', '--')}"
    shutil.copytree(directory, repository / "snapshots" / COMMIT)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)


@pytest.fixture
def hub_cache(tmp_path, monkeypatch):
    """An empty cache in place of the user's."""
    cache = tmp_path / "hub"
    cache.mkdir()
    for module in ("huggingface_hub.constants", "transformers.utils.hub"):
        for attribute in ("HF_HUB_CACHE", "TRANSFORMERS_CACHE"):
            monkeypatch.setattr(f"{module}.{attribute}", str(cache), raising=False)
    return cache


def offline(tmp_path, cache, path):
    """`open_checkpoint(path)` in a process that was started with HF_HUB_OFFLINE=1."""
    code = (
        "import sys; from pld_ray.policies.checkpoint import open_checkpoint\n"
        "try:\n    checkpoint = open_checkpoint(sys.argv[1])\n"
        "except FileNotFoundError as error:\n    print(error)\n"
        "else:\n    print(checkpoint.fingerprint(), checkpoint.from_hub)"
    )
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(cache)}
    done = subprocess.run(
        [sys.executable, "-c", code, path],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def test_a_hub_name_offline_is_one_clear_error(tmp_path):
    message = offline(tmp_path, tmp_path / "hub", "someone/act")
    assert message.startswith("base policy 'someone/act' is not a directory here and cannot be had")
    assert "set 'HF_HUB_OFFLINE=0'" in message
    assert "--local-dir DIR" in message
    assert "\n" not in message


def test_a_run_names_its_policy_by_hub_name_or_from_home(tmp_path, monkeypatch):
    put_in_cache(tmp_path / "hub", "someone/act", EMBEDDED_ACT)
    done = subprocess.run(
        [sys.executable, "-m", "pld_ray.cli", "train", "--policy.path=someone/act", "--dry_run"],
        env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(tmp_path / "hub")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "configuration, environment and base policy are fine" in done.stdout

    shutil.copytree(EMBEDDED_ACT, tmp_path / "mine/act")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    check_start(load_config(TrainConfig, ["--policy.path=~/mine/act"]))
    for gone in ("mine/ac", "nowhere", "~/mine/ac"):  # a folder that is here owns no repository
        told = gone.replace("~", str(tmp_path))
        with pytest.raises(ConfigError, match=f"policy.path={told}: no such folder"):
            check_start(load_config(TrainConfig, [f"--policy.path={gone}"]))


def test_a_hub_name_is_read_from_the_cache(tmp_path, act_directory):
    put_in_cache(tmp_path / "hub", "someone/act", act_directory)
    answer = offline(tmp_path, tmp_path / "hub", "someone/act")
    assert answer == f"{open_checkpoint(act_directory).fingerprint()} True"


@pytest.mark.parametrize("inside", ["", "checkpoints", "checkpoints/best"])
def test_a_run_in_place_of_a_policy_is_told_how_it_becomes_one(inside, tmp_path):
    run = tmp_path / "run"
    (run / "checkpoints/best").mkdir(parents=True)
    (run / "config.yaml").touch()
    with pytest.raises(FileNotFoundError, match=f"config.json is missing: `pld-ray export {run} "):
        open_checkpoint(run / inside)


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize("path", ["outputs/policy", "/nowhere", "nowhere", "a/b/c", "some one/act"])
def test_what_cannot_be_a_hub_name_is_a_missing_directory(tmp_path, monkeypatch, path):
    (tmp_path / "outputs").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"is not a directory: give a local LeRobot"):
        open_checkpoint(path)


@pytest.mark.usefixtures("no_network", "hub_cache")
@pytest.mark.parametrize("kind", VISION_LANGUAGE)
def test_a_tokeniser_that_is_not_here_names_the_flag(tiny_directory, load_tiny, kind):
    name = "nobody/tiny-vlm" if kind == "smolvla" else "google/paligemma-3b-pt-224"
    with pytest.raises(
        FileNotFoundError,
        match=rf"'{name}', which is not.*--policy.tokenizer_path.*--algorithm.actor_tokenizer_path",
    ):
        load_tiny(tiny_directory(kind))


@pytest.mark.usefixtures("no_network")
def test_a_tokeniser_path_must_be_a_directory(load_tiny):
    with pytest.raises(FileNotFoundError, match=r"--policy.tokenizer_path 'nowhere' is not a dir"):
        load_tiny("pi0", tokenizer_path="nowhere")


@pytest.mark.usefixtures("no_network")
def test_a_broken_tokeniser_is_named(load_tiny, tmp_path):
    with pytest.raises(ValueError, match=r"the processors of .* cannot be built"):
        load_tiny("pi0", tokenizer_path=tmp_path)


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize("kind", VISION_LANGUAGE)
def test_a_cached_tokeniser_is_used(tiny_directory, load_tiny, tiny_policy, hub_cache, kind):
    name = "nobody/tiny-vlm" if kind == "smolvla" else "google/paligemma-3b-pt-224"
    put_in_cache(hub_cache, name, tiny_directory(kind).parent / "tokenizer")
    policy = load_tiny(tiny_directory(kind))
    request = (make_observations(2, 0), make_tasks(2), [0, 1], [0, 1])
    expected = tiny_policy(kind).infer(*request).chunks
    np.testing.assert_array_equal(policy.infer(*request).chunks, expected)


def test_fingerprint_covers_what_replaces_the_checkpoints_own(load_tiny, tiny_directory, tmp_path):
    """Answers of another tokeniser, name or number of steps are other answers."""
    original = load_tiny("act").fingerprint
    assert original == open_checkpoint(tiny_directory("act")).fingerprint()
    assert load_tiny("act", features="none", batch_rows=4).fingerprint == original
    assert load_tiny("act", n_action_steps=3).fingerprint != original
    assert load_tiny("act", dtype="bfloat16").fingerprint != original
    tokenizer = shutil.copytree(tiny_directory("pi0").parent / "tokenizer", tmp_path / "other")
    same = load_tiny("pi0", tokenizer_path=tokenizer).fingerprint
    assert same == load_tiny("pi0").fingerprint
    (tokenizer / "tokenizer_config.json").write_text(
        (tokenizer / "tokenizer_config.json").read_text() + "\n"
    )
    assert load_tiny("pi0", tokenizer_path=tokenizer).fingerprint != same
