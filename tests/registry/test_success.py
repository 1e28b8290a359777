"""What a version says of its checkpoint's success, and of the one that its alias leaves."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace

import pytest
from mlflow.exceptions import MlflowException

from pld_ray.registry.success import in_words, known_success, lower_than_before

TASK = {"task": "lift_the_can"}


@pytest.fixture
def run(tmp_path):
    """A run whose `best` was evaluated on the held states, beside another checkpoint."""
    for name, best in (("best", 0.9), ("final", 0.9), ("early", -1.0)):
        state = {"best_success": best, "evaluated_at": 500 if best > 0 else -1}
        folder = tmp_path / "checkpoints" / name
        folder.mkdir(parents=True)
        (folder / "manifest.json").write_text(json.dumps({"checksum": name}))
        (folder / "trainer.json").write_text(json.dumps(state))
    overall = {"pc_success": 95.0, "n_episodes": 100}
    (tmp_path / "eval_info.json").write_text(json.dumps({"overall": overall, "checksum": "best"}))
    return tmp_path


def test_success_is_of_the_checkpoint_that_was_evaluated(run):
    best = {"held_success": "0.95", "held_states": "100", "validation_success": "0.9"}
    assert known_success(run / "checkpoints/best") == best
    assert in_words(best) == "95% on the held states, 90% on the validation states"
    assert known_success(run / "checkpoints/final") == {}
    (run / "eval_info.json").unlink()
    assert known_success(run / "checkpoints/best") == {"validation_success": "0.9"}
    state = {"best_success": 0.8, "evaluated_at": -1}  # an older release: of an earlier `best`
    (run / "checkpoints/best/trainer.json").write_text(json.dumps(state))
    assert known_success(run / "checkpoints/best") == {}
    (run / "checkpoints/best").rename(run / "checkpoints/old")
    (run / "checkpoints/early").rename(run / "checkpoints/best")  # never validated
    assert known_success(run / "checkpoints/best") == {}


@pytest.mark.parametrize(
    ("before", "now", "words"),
    [
        (
            {"held_success": "0.95"},
            {"held_success": "0.8"},
            "version 3, .* held .* 95% and not 80%",
        ),
        ({"validation_success": "0.9"}, {"validation_success": "0.7"}, "validation .* 90% and not"),
        ({"held_success": "0.8"}, {"held_success": "0.8"}, ""),
        ({"held_success": "0.95"}, {"validation_success": "0.1"}, ""),
        ({"held_success": "0.95", "task": "another"}, {"held_success": "0.1"}, ""),
        ({}, {"held_success": "0.1"}, ""),
    ],
)
def test_an_alias_that_leaves_a_better_version_says_so(before, now, words):
    version = SimpleNamespace(version=3, tags=TASK | before)
    client = SimpleNamespace(get_model_version_by_alias=lambda name, alias: version)
    told = lower_than_before(client, "lifter", "best", TASK | now)
    assert bool(told) == bool(words)
    assert re.search(words, told)


def test_a_first_version_leaves_none():
    def missing(name, alias):
        raise MlflowException("Registered model alias best not found.")

    client = SimpleNamespace(get_model_version_by_alias=missing)
    assert lower_than_before(client, "lifter", "best", {"held_success": "0.1"}) == ""
