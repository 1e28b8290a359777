import os
import pty
import select
import shutil
import subprocess
import time

import pytest

from pld_ray.cli import main
from pld_ray.cli.completion_script import script, usage_flags
from pld_ray.cli.entry import COMMANDS
from pld_ray.config import ConfigError

CASES = [
    ("pld-ray tra", ["train"]),
    ("pld-ray ", sorted(COMMANDS)),
    ("pld-ray train --algorithm.ut", ["--algorithm.utd="]),
    ("pld-ray train --resu", ["--resume="]),
    ("pld-ray train --dry", ["--dry_run"]),
    ("pld-ray pretrain --algorithm.gripper=", ["continuous", "discrete"]),
    ("pld-ray train --policy.compile=t", ["true"]),
    ("pld-ray train --explain algorithm.otf", ["algorithm.otf_candidates"]),
    ("pld-ray train --env.task=lift", ["lift_the_can"]),
    ("pld-ray train --env.suite=pld", ["pld_tabletop"]),
    ("pld-ray ls --sort=s", ["steps", "success"]),
    ("pld-ray completion z", ["zsh"]),
    ("pld-ray report ru", ["run one", "run two"]),
    ("pld-ray train --config_path=ru", ["run one", "run two"]),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The scripts, and files to complete."""
    folder = tmp_path_factory.mktemp("completion")
    (folder / "run one").mkdir()
    (folder / "run two").mkdir()
    for shell in ("bash", "zsh", "fish"):
        (folder / f"completion.{shell}").write_text(script(shell))
    return folder


def installed(shell):
    return pytest.mark.skipif(shutil.which(shell) is None, reason=f"{shell} is not installed")


@installed("bash")
@pytest.mark.parametrize(("line", "expected"), CASES)
def test_bash_completes(folder, line, expected):
    ask = f"""
    source completion.bash
    COMP_LINE='{line}'; COMP_POINT=${{#COMP_LINE}}
    read -ra COMP_WORDS <<< "${{COMP_LINE/=/ = }}"
    [[ $COMP_LINE != *[\\ =] ]] || COMP_WORDS+=('')
    COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
    _pld_ray; printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(["bash", "-c", ask], cwd=folder, capture_output=True, text=True)
    assert sorted(done.stdout.splitlines()) == expected
    assert done.stderr.replace("bash: line 7: compopt", "").count("\n") <= 1  # not completing


@installed("fish")
@pytest.mark.parametrize(("line", "expected"), CASES)
def test_fish_completes(folder, line, expected):
    ask = f"source completion.fish; complete -C '{line}'"
    done = subprocess.run(
        ["fish", "--no-config", "-c", ask],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "HOME": str(folder), "XDG_CONFIG_HOME": str(folder)},
    )
    assert done.stderr == ""
    found = [row.split("\t")[0] for row in done.stdout.splitlines()]
    if "=" in line:
        found = [word.partition("=")[2] for word in found]
    plain = [word.rstrip("=") for word in expected]
    assert sorted(word.rstrip("/").replace("\\ ", " ") for word in found) == plain


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
            env={**os.environ, "TERM": "dumb", "PS1": "$ ", "HOME": str(folder)},
            start_new_session=True,
        )
        os.close(slave)
        self.seen = ""

    def type(self, keys):
        os.write(self.master, keys.encode())

    def wait_for(self, words):
        deadline = time.monotonic() + 30
        while words not in self.seen:
            assert time.monotonic() < deadline, self.seen
            if select.select([self.master], [], [], 0.2)[0]:
                self.seen += os.read(self.master, 65_536).decode(errors="replace")
        self.seen = self.seen.split(words, 1)[1]

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
        ):
            terminal.type(typed)
            terminal.wait_for(completed)
    finally:
        terminal.close()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_command_prints_the_script(shell, capsys):
    assert main(["completion", shell]) == 0
    assert capsys.readouterr().out == script(shell)


@pytest.mark.parametrize("args", [[], ["tcsh"], ["bash", "zsh"]])
def test_other_shells_are_one_sentence(args, capsys):
    assert main(["completion", *args]) == 2
    assert "bash" in capsys.readouterr().err


def test_an_unknown_shell_names_the_known_ones():
    with pytest.raises(ConfigError, match="tcsh: pld-ray completion knows bash, zsh, fish"):
        script("tcsh")


def test_flags_are_read_from_a_usage_text():
    found = usage_flags(
        "x [--json] [--sort=name|steps]\n --out_dir=DIR  where\n --explain KEY  --json"
    )
    assert [(f.name, f.takes_value, f.values, f.takes_file) for f in found] == [
        ("json", False, (), False),
        ("sort", True, ("name", "steps"), False),
        ("out_dir", True, (), True),
        ("explain", True, (), False),
    ]
