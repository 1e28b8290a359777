import json
import os
import subprocess
import sys

import pytest

from pld_ray.cli import main
from pld_ray.cli.show import describe
from pld_ray.config.file import dump_config
from pld_ray.config.finetune import FinetuneConfig
from pld_ray.files.lock import FolderLock
from pld_ray.runs.listing import list_folder
from pld_ray.runs.reading import read_metrics
from pld_ray.runs.status import FAILED, RUNNING, write_status


@pytest.fixture
def outputs(tmp_path, make_run):
    """Runs in every state, and a sweep."""
    root = tmp_path / "outputs"
    curve = [(12_000, 0.6), (24_000, 0.9), (36_000, 0.84)]
    make_run(root / "finished", evaluations=curve, held=0.88)
    make_run(root / "interrupted", seed=1, evaluations=curve[:2], interrupted=True)
    make_run(root / "failed", seed=2, evaluations=curve[:1], failed="ValueError: no such thing")
    make_run(root / "deep" / "never", seed=3)
    for number, end in enumerate((3, 1)):
        folder = root / "sweep" / "trials" / f"t000{number}"
        held = 0.95 if end == 3 else None
        make_run(
            folder,
            seed=number,
            evaluations=curve[:end],
            held=held,
            point=f"algorithm.gamma=0.9{number}, algorithm.a, algorithm.b=[1, 2]",
        )
    state = {"format_version": 1, "name": "s", "state": "finished", "num_trials": 3}
    (root / "sweep" / "sweep.json").write_text(json.dumps(state))
    return root


def states(folder, **kwargs):
    return {row.name: row.state for row in list_folder(folder, **kwargs)}


def test_every_run_is_listed_with_its_state(outputs):
    assert states(outputs) == {
        "finished": "finished",
        "interrupted": "interrupted",
        "failed": "failed",
        "deep/never": "never started",
        "sweep": "finished",
    }


def test_figures_come_from_the_held_states_else_from_the_newest_evaluation(outputs):
    rows = {row.name: row for row in list_folder(outputs)}
    finished, interrupted = rows["finished"], rows["interrupted"]
    assert (finished.base_success, finished.success, finished.held) == (0.56, 0.88, True)
    assert finished.best_validation_success == 0.9
    assert (finished.env_steps, finished.total_steps) == (36_000, 36_000)
    assert (interrupted.success, interrupted.held, interrupted.seed) == (0.9, False, 1)
    assert rows["failed"].reason == "ValueError: no such thing"


def test_a_sweep_counts_its_trials_and_names_the_best(outputs):
    (sweep,) = [row for row in list_folder(outputs) if row.kind == "sweep"]
    assert sweep.trials == {"finished": 1, "stopped early": 1, "never started": 1}
    assert (sweep.best_trial, sweep.success) == ("t0000", 0.95)
    assert sweep.best_validation_success == 0.9
    inside = states(outputs / "sweep")
    assert inside == {
        "sweep": "finished",
        "sweep/t0000": "finished",
        "sweep/t0001": "stopped early",
    }
    assert "sweep/t0001" in states(outputs, trials=True)


def test_a_trial_that_was_killed_for_good_failed_and_one_that_was_ended_did_not(tmp_path, make_run):
    sweep = tmp_path / "sweep"
    for trial in ("t0000", "t0001"):
        make_run(sweep / "trials" / trial, evaluations=[(1000, 0.7)])  # says nothing of its end
    (sweep / "trials" / "t0000" / "ended.json").write_text('{"env_steps": 1000}')
    (sweep / "sweep.json").write_text('{"state": "finished", "num_trials": 2}')
    (sweep / "summary.json").write_text('{"num_failed": 1}')
    inside = states(sweep)
    assert inside["sweep/t0000"] == "stopped early"
    assert inside["sweep/t0001"] == "failed"
    shown = describe(sweep / "trials" / "t0000")
    assert (shown["state"], shown["name"]) == ("stopped early", "t0000")
    assert "resume" not in shown["next"]
    assert describe(sweep / "trials" / "t0001")["state"] == "failed"
    write_status(sweep, RUNNING)
    assert states(sweep)["sweep/t0001"] == "interrupted"  # it may go on


def test_a_trial_that_was_killed_before_it_reported_failed_too(tmp_path, make_run):
    sweep = tmp_path / "sweep"
    for trial in ("t0000", "t0001"):
        write_status(make_run(sweep / "trials" / trial), RUNNING)
    (sweep / "trials" / "t0000" / "ended.json").write_text('{"env_steps": 0}')
    (sweep / "sweep.json").write_text('{"state": "finished", "num_trials": 3}')
    (sweep / "summary.json").write_text('{"num_failed": 1}')
    inside = states(sweep)
    assert inside["sweep/t0000"] == "stopped early"
    assert inside["sweep/t0001"] == "failed"
    (listed,) = list_folder(tmp_path)
    assert listed.trials == {"stopped early": 1, "failed": 1, "never started": 1}
    write_status(sweep, RUNNING)
    assert states(sweep)["sweep/t0001"] == "never started"  # it may begin yet


def test_what_fine_tuning_began_from_is_not_its_best(tmp_path, capsys):
    folder = tmp_path / "tuned"
    (folder / "checkpoints" / "best").mkdir(parents=True)
    (folder / "checkpoints" / "best" / "residual_sac.json").write_text('{"env_steps": 1000}')
    (folder / "config.yaml").write_text(dump_config(FinetuneConfig()))
    (folder / "mlflow_run.json").write_text('{"tracking_uri": "http://server", "run_id": "1"}')
    with (folder / "metrics.jsonl").open("w") as file:
        for updates, success in ((0, 0.7), (500, 0.5), (1000, 0.6)):
            row = {"env_steps": updates, "updates": updates, "eval/success": success}
            file.write(json.dumps(row) + "\n")
    (listed,) = list_folder(folder)
    assert listed.best_validation_success == 0.6
    assert listed.least_validation_success == 0.5
    assert main(["show", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert "held states" not in shown
    assert "pld-ray report" not in shown


def test_a_run_that_went_on_after_its_end_shows_its_newest_validation(tmp_path):
    rows = [
        {"env_steps": 1500, "eval/residual_success": 0.5},
        {"env_steps": 1500, "eval/held_residual_success": 0.375, "eval/held_base_success": 0.25},
    ]
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert read_metrics(path).held == 0.375
    with path.open("a") as file:
        file.write(json.dumps({"env_steps": 2000, "updates": 1900}) + "\n")
    found = read_metrics(path)
    assert (found.held, found.success, found.base, found.env_steps) == (None, 0.5, 0.25, 2000)


def test_the_best_trial_is_chosen_in_validation_and_not_on_the_held_states(tmp_path, make_run):
    trials = tmp_path / "sweep" / "trials"
    make_run(trials / "t0000", evaluations=[(1000, 0.7)], held=0.9)
    make_run(trials / "t0001", evaluations=[(1000, 0.8)], held=0.6)
    (tmp_path / "sweep" / "sweep.json").write_text('{"state": "finished", "num_trials": 2}')
    (sweep,) = list_folder(tmp_path)
    assert (sweep.best_trial, sweep.success) == ("t0001", 0.6)


def test_a_pid_in_run_lock_counts_while_its_process_lives(outputs):
    lock = outputs / "interrupted" / "run.lock"
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    lock.write_text(json.dumps({"pid": process.pid, "host": os.uname().nodename}))
    assert states(outputs)["interrupted"] == "running"
    process.communicate(b"\n")
    assert states(outputs)["interrupted"] == "interrupted"


def test_a_run_that_was_killed_is_interrupted_and_its_next_life_running(outputs):
    run = outputs / "interrupted"
    write_status(run, RUNNING)
    assert states(outputs)["interrupted"] == "interrupted"
    lock = FolderLock(run)
    lock.claim()
    assert states(outputs)["interrupted"] == "running"
    assert lock.path.exists()  # to list a run is not to take its lock
    lock.release()
    assert states(outputs)["interrupted"] == "interrupted"


def test_a_run_that_failed_and_was_resumed_has_not_failed(outputs):
    write_status(outputs / "failed", RUNNING)
    assert states(outputs)["failed"] == "interrupted"


def test_runs_of_releases_that_wrote_no_status_are_listed(outputs):
    for path in outputs.rglob("status.json"):
        path.unlink()
    (outputs / "failed" / "failure.txt").write_text("ValueError: no such thing\nat line 3")
    assert states(outputs) == {
        "finished": "finished",
        "interrupted": "interrupted",
        "failed": "failed",
        "deep/never": "never started",
        "sweep": "finished",
    }
    (failed,) = [row for row in list_folder(outputs) if row.state == "failed"]
    assert failed.reason == "ValueError: no such thing"
    state = json.dumps({"state": "running", "num_trials": 3})
    (outputs / "sweep" / "sweep.json").write_text(state)
    assert states(outputs)["sweep"] == "interrupted"
    lock = FolderLock(outputs / "sweep" / "trials" / "t0001")
    lock.claim()
    assert states(outputs)["sweep"] == "running"
    lock.release()


def test_a_sweep_says_itself_what_it_is_doing(outputs):
    write_status(outputs / "sweep", FAILED, "ConfigError: the store is away")
    (sweep,) = [row for row in list_folder(outputs) if row.kind == "sweep"]
    assert (sweep.state, sweep.reason) == ("failed", "ConfigError: the store is away")
    write_status(outputs / "sweep", RUNNING)
    assert states(outputs)["sweep"] == "interrupted"  # killed


def test_damaged_and_foreign_files_are_no_reason_to_stop(outputs):
    (outputs / "finished" / "summary.json").write_text('{"residual_su')
    (outputs / "finished" / "status.json").write_text("{")
    with (outputs / "finished" / "metrics.jsonl").open("a") as file:
        file.write('nonsense\n{"env_steps": 40000, "eval/resi')
    (outputs / "site").mkdir()
    (outputs / "site" / "config.yaml").write_text("title: a website\n")
    (outputs / "broken").mkdir()
    (outputs / "broken" / "config.yaml").write_text("env: [")
    found = states(outputs)
    assert found["finished"] == "interrupted"
    assert not {"site", "broken"} & found.keys()


# --- the command ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "first"), [("success", "sweep"), ("steps", "sweep"), ("name", "deep/never")]
)
def test_rows_are_sorted(outputs, capsys, key, first):
    assert main(["ls", str(outputs), f"--sort={key}", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert rows[0]["name"] == first
    assert all(row["age_s"] >= 0 for row in rows)


def ls(*args, **environment):
    """`pld-ray ls` in a process of its own, its output no terminal."""
    return subprocess.run(
        [sys.executable, "-m", "pld_ray.cli", "ls", *args],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )


def test_a_pipe_gets_plain_text_within_80_columns(outputs, make_run):
    make_run(outputs / ("a_very_long_name_of_a_run_" * 3), seed=4)
    out = ls(str(outputs)).stdout
    assert "\x1b" not in out
    *table, task = out.split("base, held:")[0].splitlines()
    assert max(len(line) for line in table) <= 80
    assert "finished 2/3" in out
    assert task == "task: pick_up_the_can_and_place_it_in_the_bin"


def test_trials_are_listed_with_point_seed_and_success_under_names_that_say_which(outputs):
    header, *rows = ls(str(outputs), "--trials").stdout.splitlines()
    assert header.split() == ["run", "state", "base", "held", "validation", "steps", "seed", "age"]
    at = next(i for i, row in enumerate(rows) if row.startswith("sweep/t0000"))
    assert rows[at] == "sweep/t0000 gamma=0.90, a, b=[1, 2]"  # too long for its column
    assert rows[at + 1].split()[:6] == ["finished", "56%", "95%", "90%", "36k/36k", "0"]
    assert rows[at + 2] == "sweep/t0001 gamma=0.91, a, b=[1, 2]"
    assert rows[at + 3].split()[:7] == ["stopped", "early", "56%", "-", "60%", "12k/36k", "1"]
    legend = " ".join(rows[at + 4 :])
    assert "validation: the best while training, which chooses the checkpoint" in legend


def test_runs_of_several_tasks_stand_under_their_task(outputs, make_run):
    other = make_run(outputs / "lift", evaluations=[(1000, 0.5)])
    config = (other / "config.yaml").read_text()
    (other / "config.yaml").write_text(config.replace("pick_up_the_can", "lift_the_can"))
    lines = ls(str(outputs)).stdout.splitlines()
    heading = next(i for i, line in enumerate(lines) if line.startswith("lift the can"))
    assert lines[heading + 1].startswith("  lift ")
    assert max(map(len, lines)) <= 80


def test_no_color_is_respected_where_colour_is_forced(outputs):
    assert "\x1b[" in ls(str(outputs), FORCE_COLOR="1", TERM="xterm").stdout
    assert "\x1b[" not in ls(str(outputs), FORCE_COLOR="1", TERM="xterm", NO_COLOR="1").stdout


def test_nothing_heavy_is_imported():
    code = (
        "import sys; from pld_ray.cli import main; main(['ls', '.']);"
        "heavy = {'torch', 'ray', 'mlflow', 'matplotlib', 'numpy', 'pandas'} & set(sys.modules);"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["nowhere"], "nowhere: no such folder"),
        ([".", "--sort=size"], "--sort=size: must be name, success, steps, time"),
        ([".", "--jason"], "--jason does not exist; did you mean --json?"),
        ([".", "--size"], "--size is none of its flags; usage: pld-ray ls"),
    ],
)
def test_a_mistake_is_one_sentence(args, words, capsys):
    assert main(["ls", *args]) == 2
    assert words in capsys.readouterr().err


def test_an_empty_folder_says_how_to_start(tmp_path, capsys):
    assert main(["ls", str(tmp_path)]) == 0
    assert "pld-ray train --output_dir" in capsys.readouterr().out
    assert main(["ls", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []
