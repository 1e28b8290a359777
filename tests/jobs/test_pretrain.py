"""`pld-ray pretrain`: what it refuses before anything is collected, and how it goes on."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest

from pld_ray.cli import main
from pld_ray.config import ConfigError, TrainConfig
from pld_ray.config.acrlpd_train import ACRLPDTrainConfig
from pld_ray.jobs.pretrain import pretrain, restore
from pld_ray.runs.layout import PROGRESS_FILE
from pld_ray.runs.run_dir import RunDir


def test_a_critic_that_is_there_is_not_made_again(tmp_path, capsys):
    critic, folder = tmp_path / "critic", tmp_path / "run"
    critic.mkdir()
    flags = [f"--pretrained_critic={critic}", f"--output_dir={folder}"]
    assert main(["pretrain", "--algorithm.calql_steps=5", *flags]) == 2
    told = capsys.readouterr().err
    assert f"pretrained_critic={critic} is a critic that was made already: leave it out, or" in told
    assert told.count("\n") == 1
    assert not folder.exists()


@pytest.mark.parametrize("config_class", [TrainConfig, ACRLPDTrainConfig])
def test_another_command_s_run_is_left_to_it(config_class, tmp_path):
    use = f"no run of pld-ray pretrain: .* continue it with pld-ray train --resume={tmp_path}$"
    with pytest.raises(ConfigError, match=use):
        pretrain(config_class(), tmp_path)


def test_what_is_learnt_again_after_a_kill_stands_in_the_journal_once(tmp_path):
    run = RunDir(tmp_path)
    checkpoint = run.checkpoints / "interrupted"
    checkpoint.mkdir(parents=True)
    (checkpoint / PROGRESS_FILE).write_text('{"env_steps": 60, "updates": 0}')
    for steps in (200, 400, 600):
        run.journal.append({"env_steps": 60, "calql/steps": steps})
    loaded = []
    algorithm = SimpleNamespace(
        load_checkpoint=loaded.append, env_steps=60, progress=SimpleNamespace(calql_done=200)
    )
    restore(algorithm, run, logging.getLogger(__name__))
    assert loaded == [str(checkpoint)]
    assert [row["calql/steps"] for row in run.journal.rows()] == [200]
