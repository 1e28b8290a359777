import io
import os
import pathlib
import pty
import select
import shutil
import subprocess
import sys
import time

import pytest

from pld_ray.cli import main
from pld_ray.cli.completion import complete
from pld_ray.cli.entry import COMMANDS
from pld_ray.config.presets import preset_names

CASES = [
    ("pld-ray tra", ["train"]),
    ("pld-ray ", sorted(COMMANDS)),
    ("pld-ray train --algorithm.ut", ["--algorithm.utd="]),
    ("pld-ray train --resu", ["--resume="]),
    ("pld-ray train --dry", ["--dry_run"]),
    ("pld-ray pretrain --algorithm.gripper=", ["continuous", "discrete"]),
    ("pld-ray pretrain --algorithm.gripper d", ["discrete"]),
    ("pld-ray train --policy.compile=t", ["true"]),
    ("pld-ray train --explain algorithm.otf", ["algorithm.otf_candidates"]),
    ("pld-ray train --env.task=lift", ["lift_the_can"]),
    ("pld-ray train --env.suite=pld", ["pld_tabletop"]),
    ("pld-ray sweep --scheduler.ty", ["--scheduler.type="]),
    ("pld-ray ls --sort=s", ["steps", "success"]),
    ("pld-ray completion z", ["zsh"]),
    ("pld-ray report ru", ["run one/", "run two/"]),
    ("pld-ray train --config_path=ru", ["run one/", "run two/"]),
    ("pld-ray train --config_path=pl", ["pld"]),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The scripts, and files to complete."""
    folder = tmp_path_factory.mktemp("completion")
    (folder / "run one").mkdir()
    (folder / "run two").mkdir()
    for shell in ("bash", "zsh", "fish"):
        command = [sys.executable, "-m", "pld_ray.cli", "completion", shell]
        (folder / f"completion.{shell}").write_bytes(subprocess.check_output(command))
    return folder


def environment(folder):
    """Of a shell that finds this `pld-ray`."""
    path = f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "HOME": str(folder), "TERM": "dumb", "PS1": "$ "}


def completions(line, monkeypatch):
    """What the shell is answered."""
    asked = {"_ARGCOMPLETE": "1", "_ARGCOMPLETE_IFS": "\n", "_ARGCOMPLETE_SHELL": "fish"}
    asked |= {"_ARGCOMPLETE_SUPPRESS_SPACE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line))}
    for name, value in asked.items():
        monkeypatch.setenv(name, value)
    answer = io.StringIO()
    complete(output_stream=answer, exit_method=lambda status: None)
    return answer.getvalue().splitlines()


@pytest.mark.parametrize(("line", "expected"), CASES)
def test_a_line_is_completed(folder, line, expected, monkeypatch):
    monkeypatch.chdir(folder)
    found = [
        word.rpartition("=")[2] if "=" in line else word for word in completions(line, monkeypatch)
    ]
    assert sorted(found) == expected


def test_every_preset_is_offered(monkeypatch, folder):
    monkeypatch.chdir(folder)
    found = completions("pld-ray train --config_path=", monkeypatch)
    assert {f"--config_path={name}" for name in preset_names()} <= set(found)


def test_an_answer_needs_nothing_that_takes_time(folder):
    code = (
        "import os, sys; from pld_ray.cli.completion import complete;"
        "os.environ.update(_ARGCOMPLETE='1', COMP_LINE='pld-ray train --al', COMP_POINT='18');"
        "complete(output_stream=sys.stdout, exit_method=lambda status: None);"
        "heavy = {'torch', 'ray', 'mlflow', 'numpy', 'gymnasium', 'rich'} & set(sys.modules);"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def installed(shell):
    return pytest.mark.skipif(shutil.which(shell) is None, reason=f"{shell} is not installed")


@installed("fish")
@pytest.mark.parametrize(("line", "expected"), CASES[:3] + CASES[-2:])
def test_fish_completes(folder, line, expected):
    done = subprocess.run(
        ["fish", "--no-config", "-c", f"source completion.fish; complete -C '{line}'"],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**environment(folder), "XDG_CONFIG_HOME": str(folder)},
    )
    assert done.stderr == ""
    found = [row.split("\t")[0] for row in done.stdout.splitlines()]
    if "=" in line:
        found = [word.partition("=")[2] for word in found]
    assert sorted(word.replace("\\ ", " ") for word in found) == expected


class Terminal:
    """An interactive shell on a pseudo-terminal."""

    def __init__(self, command, folder):
        self.master, slave = pty.openpty()
        self.process = subprocess.Popen(
            command,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=folder,
            env=environment(folder),
            start_new_session=True,
        )
        os.close(slave)
        self.seen = ""

    def type(self, keys):
        os.write(self.master, keys.encode())

    def wait_for(self, text):
        deadline = time.monotonic() + 120
        while text not in self.seen:
            assert time.monotonic() < deadline, self.seen
            if select.select([self.master], [], [], 0.2)[0]:
                self.seen += os.read(self.master, 65_536).decode(errors="replace")
        self.seen = self.seen.split(text, 1)[1]

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self.master)


SHELLS = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], "source completion.bash"),
    "zsh": (["zsh", "-f", "-i"], "autoload -U compinit; compinit -u; source completion.zsh"),
}


@pytest.mark.parametrize("shell", [pytest.param(name, marks=installed(name)) for name in SHELLS])
def test_tab_completes_in_a_terminal(folder, shell):
    command, load = SHELLS[shell]
    terminal = Terminal(command, folder)
    try:
        terminal.type(f"{load}; echo rea''dy\n")
        terminal.wait_for("ready")
        for typed, completed in (
            ("pld-ray tra\t", "pld-ray train"),
            ("--algorithm.residual_scale_sch\t", "residual_scale_schedule="),
            ("lin\t", "linear"),
            (" --dry\t", "--dry_run"),
            (" --resume=run\\ o\t", "ne/"),
        ):
            terminal.type(typed)
            terminal.wait_for(completed)
    finally:
        terminal.close()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_command_prints_the_script(shell, capsys):
    assert main(["completion", shell]) == 0
    assert "pld-ray" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "SHELL is missing; usage: pld-ray completion SHELL"),
        (["tcsh"], "tcsh: pld-ray completion knows bash, zsh, fish"),
        (["bash", "zsh"], "zsh is none of its arguments; usage"),
    ],
)
def test_other_shells_are_one_sentence(args, message, capsys):
    assert main(["completion", *args]) == 2
    assert message in capsys.readouterr().err
