"""The commands of docs/human.md are read as they stand there."""

import pathlib
import re
import shlex

import pytest
import yaml

from pld_ray.cli import main
from pld_ray.cli.entry import module_of
from pld_ray.config import TrainConfig
from pld_ray.config.file import config_path, dump_config, load_config
from pld_ray.rollout.keyboard import GRIPS, LET_GO, MOTIONS, PAUSE

PAGE = (pathlib.Path(__file__).parents[2] / "docs/human.md").read_text()
COMMANDS = [shlex.split(line)[1:] for line in PAGE.splitlines() if line.startswith("pld-ray ")]
ARM = "arm.yaml"


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_each_command_is_one_that_we_have(command, capsys, tmp_path):
    name, *flags = command
    if ">" in flags:  # makes the file that the page then completes
        assert flags[flags.index(">") :] == [">", ARM]
        flags = flags[: flags.index(">")]
    if f"--config_path={ARM}" in flags:
        flags[flags.index(f"--config_path={ARM}")] = f"--config_path={completed_arm(tmp_path)}"
    if name == "show":  # of a run that one of the other commands makes
        assert f"--output_dir={flags[0]}" in PAGE
        return
    if name == "actor":  # has no configuration
        assert module_of(name).parser().read(flags).address == "LEARNER:6380"
        return
    if flags[0] == "evaluate":  # of what two other commands make
        for flag, made in (("--classifier=", "--output_dir="), ("--dataset=", "--root=")):
            (folder,) = [f.removeprefix(flag) for f in flags if f.startswith(flag)]
            assert f"{made}{folder}" in PAGE
        return
    assert main([name, *flags, "--print_config"]) == 0
    config = yaml.safe_load(capsys.readouterr().out)
    if flags[0] == "train":
        return
    device = config["intervention"]["device"]
    assert device == "none" or any(flag.endswith(f"device={device}") for flag in flags)
    if device == "keyboard":
        at_actor = config["placement"]["env_runner"]
        assert config["runners"]["num_env_runners"] == len(at_actor)
    if preset := config_path(flags):
        stated = load_config(TrainConfig, [f"--config_path={preset}"]).algorithm
        assert config["algorithm"]["gamma"] == stated.gamma


def completed_arm(folder):
    """The page's file for an arm."""
    made = yaml.safe_load(dump_config(load_config(TrainConfig, ["--config_path=hilserl_single"])))
    (added,) = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    for group, settings in yaml.safe_load(added).items():
        made[group] |= settings
    path = folder / ARM
    path.write_text(yaml.safe_dump(made, sort_keys=False))
    return path


def test_every_key_of_the_keyboard_is_on_the_page():
    for key in (*MOTIONS, *GRIPS, LET_GO, PAUSE, "0"):
        assert f"`{key}`" in PAGE


def test_a_device_of_a_recording_is_checked(capsys):
    assert main(["collect", "--root=x", "--device=mouse", "--print_config"]) == 2
    assert "intervention.device='mouse': must be none" in capsys.readouterr().err
