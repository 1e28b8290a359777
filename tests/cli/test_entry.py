"""What needs no simulator imports none, nor what comes with it; how a command ends."""

from __future__ import annotations

import importlib
import json
import signal
import subprocess
import sys

from pld_ray.cli import main

SCRIPT = """
import contextlib, io, json, sys
from pld_ray.cli import main
codes = {}
for line in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        codes[line] = main(line.split())
    heavy = {"torch", "ray", "lerobot", "mlflow", "mujoco"} & set(sys.modules)
    assert not heavy, (line, heavy)
print(json.dumps(codes))
"""

QUICK = {
    "--version": 0,
    "train --help": 0,
    "train --print_config": 0,
    "train --config_path=rlpd --print_config": 0,
    "train --config_path=rldp --print_config": 2,
    "train --explain algorithm.utd": 0,
    "train --algorithm.udt=2": 2,
    "train --runners.sampling=foo --dry_run": 2,
    "train --env.task=open_the_door --dry_run": 2,
    "train --policy.path=nowhere": 2,
    "pretrain --algorithm.tau=3": 2,
    "sweep experiments/sweeps/smoke.yaml --print_config": 0,
    "sweep experiments/sweeps/smoke.yaml --metric=foo": 2,
    "completion bash": 0,
}


def test_answers_that_need_no_simulator_import_none():
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(list(QUICK))], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout) == QUICK


def test_a_training_starts_without_what_only_sharded_learners_and_pages_need():
    slow = "{'torch.distributed.fsdp', 'scipy.stats', 'lerobot', 'mlflow'}"
    script = f"import sys, pld_ray.jobs.train; print(sorted({slow} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr


def test_ctrl_c_in_code_that_a_library_makes_from_text_is_an_exit_status(tmp_path):
    lines = [
        "import sys",
        "from pld_ray.cli import entry",
        """entry.answer = lambda args: exec("raise KeyboardInterrupt('stopped here')")""",
        "sys.exit(entry.main([]))",
    ]
    (tmp_path / "interrupted.py").write_text("\n".join(lines))
    done = subprocess.run(
        [sys.executable, "-m", "interrupted"], cwd=tmp_path, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (130, "pld-ray: stopped here\n")


def test_what_ray_ends_on_sigterm_says_so_with_the_shell_s_status(monkeypatch, capsys):
    def end(args):
        sys.exit(signal.SIGTERM)

    monkeypatch.setattr(importlib.import_module("pld_ray.cli.ls"), "run", end)
    assert main(["ls"]) == 143
    assert capsys.readouterr().err == "pld-ray: ended; checkpoints and whole episodes are kept\n"
