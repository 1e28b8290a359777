"""The commands of docs/circle.md are read as they stand there."""

import pathlib
import shlex

import pytest
import yaml

from pld_ray.cli import main

PAGE = (pathlib.Path(__file__).parents[2] / "docs/circle.md").read_text()
COMMANDS = [shlex.split(line)[1:] for line in PAGE.splitlines() if line.startswith("pld-ray ")]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_each_command_is_one_that_we_have(command, capsys):
    assert main([*command, "--print_config"]) == 0
    config = yaml.safe_load(capsys.readouterr().out)
    for flag in command:
        if flag.startswith("--output_dir="):
            assert config["output_dir"] == flag.partition("=")[2]
    if command[0] == "finetune":
        assert config["dataset"] == [arg for arg in command[1:] if not arg.startswith("--")]


def test_the_commands_of_the_page_fit_each_other():
    given = {flag for command in COMMANDS for flag in command}
    for run in ("outputs/circle/lift", "outputs/circle/can"):
        assert {run, f"--output_dir={run}"} <= given
