"""`pld-ray pretrain`: what it refuses before anything is collected."""

from __future__ import annotations

from pld_ray.cli import main


def test_a_critic_that_is_there_is_not_made_again(tmp_path, capsys):
    critic, folder = tmp_path / "critic", tmp_path / "run"
    critic.mkdir()
    flags = [f"--pretrained_critic={critic}", f"--output_dir={folder}"]
    assert main(["pretrain", "--algorithm.calql_steps=5", *flags]) == 2
    told = capsys.readouterr().err
    assert f"pretrained_critic={critic} is a critic that was made already: leave it out, or" in told
    assert told.count("\n") == 1
    assert not folder.exists()
