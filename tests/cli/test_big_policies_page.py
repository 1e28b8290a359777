"""The commands of docs/big_policies.md, and the job of docs/circle.md, are read as they stand."""

import pathlib
import re
import shlex
import subprocess

import pytest
import yaml

from pld_ray.cli import main

DOCS = pathlib.Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "big_policies.md").read_text()
COMMANDS = [shlex.split(line)[1:] for line in PAGE.splitlines() if line.startswith("pld-ray ")]


def configured(command: list[str], capsys: pytest.CaptureFixture[str]) -> dict:
    assert main([*command, "--print_config"]) == 0
    return yaml.safe_load(capsys.readouterr().out)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_each_command_is_one_that_we_have(command, capsys):
    config = configured(command, capsys)
    if command[0] == "finetune":
        assert config["dataset"] == ["datasets/base"]
    if command[0] == "acrlpd":
        assert config["demo_path"] == ["outputs/demonstrations"]
    assert config["learners"]["num_learners"] > 1


@pytest.mark.parametrize(("page", "name"), [("big_policies", "finetune"), ("circle", "distill")])
def test_ray_knows_the_options_of_the_job_and_we_know_its_command(page, name, capsys):
    from ray.dashboard.modules.job.cli import submit

    text = (DOCS / f"{page}.md").read_text()
    blocks = re.findall(r"^```bash\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    for block in blocks:
        assert subprocess.run(["bash", "-n"], input=block, text=True).returncode == 0
    lines = [re.sub(r"\\\n\s*", " ", block) for block in blocks]
    (words,) = (shlex.split(line) for line in lines if line.startswith("ray job submit"))
    job = submit.make_context("submit", words[3:]).params
    assert (job["working_dir"], job["runtime_env_json"]) == (".", "$COMMIT")
    program, *command = job["entrypoint"]
    assert (program, command[0]) == ("pld-ray", name)
    config = configured(command, capsys)
    assert config["placement"]["learner"] == {"learning": 0.5}
    assert config["output_dir"].startswith("$SHARED/runs/")
