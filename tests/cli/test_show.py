import json

import pytest

from pld_ray.cli import main
from pld_ray.config import PolicyConfig
from pld_ray.runs.journal import Journal
from pld_ray.tracking.mlflow_record import write_record
from pld_ray.tracking.outbox import Outbox

CURVE = [(12_000, 0.6), (24_000, 0.9)]


def show(folder, capsys):
    assert main(["show", str(folder), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_an_interrupted_run_says_how_to_go_on(tmp_path, make_run, capsys):
    run = make_run(tmp_path / "my run", evaluations=CURVE, interrupted=True, utd=4.0, seed=7)
    write_record(run, f"sqlite:///{tmp_path}/mlflow.db", "0" * 32)
    shown = show(run, capsys)
    assert shown["state"] == "interrupted"
    assert shown["settings"] == {
        "algorithm.utd": {"value": 4.0, "default": 1.0},
        "seed": {"value": 7, "default": 0},
    }
    assert shown["figures"] == {"updates": 24_000, "learner/q_mean": 0.5}
    assert shown["checkpoints"] == {"best": 24_000, "interrupted": 24_000}
    assert shown["mlflow"]["run_id"] == "0" * 32
    assert shown["next"] == {
        "resume": f"pld-ray train --resume='{run}'",
        "evaluate": f"pld-ray eval --checkpoint='{run}'/checkpoints/best",
        "report": f"pld-ray report '{run}'",
        "open MLflow": f"mlflow ui --backend-store-uri=sqlite:///{tmp_path}/mlflow.db",
    }


def test_what_mlflow_was_not_sent_is_told_with_the_command_that_sends_it(
    tmp_path, make_run, capsys
):
    run = make_run(tmp_path / "my run", evaluations=CURVE, held=0.9)
    write_record(run, "http://server", "0" * 32)
    outbox = Outbox(run, "0" * 32, Journal(run / "metrics.jsonl"))
    outbox.add_row(outbox.journal.append({"env_steps": 24_001, "loss": 1.0}))
    outbox.append("artifact", path="config.yaml", folder=None)
    outbox.append("tags", values={"a": "b", "c": "d"})
    shown = show(run, capsys)
    assert shown["unsent"] == 4
    assert shown["next"]["send"] == f"pld-ray send '{run}'"
    assert main(["show", str(run)]) == 0
    assert "not sent yet  4 values and artifacts" in capsys.readouterr().out
    for name in ("metrics", "values", "artifacts"):
        while batch := outbox.next_batch([name]):
            outbox.mark_sent(batch)
    shown = show(run, capsys)
    assert shown["unsent"] == 0
    assert "send" not in shown["next"]
    (run / "mlflow_outbox.jsonl").write_text("damaged\n")
    assert show(run, capsys)["unsent"] == 0


def test_the_text_names_the_same_things(tmp_path, make_run, capsys):
    run = make_run(tmp_path / "run", evaluations=CURVE, held=0.93, utd=4.0)
    assert main(["show", str(run)]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    for words in (
        "run  finished",
        "24,000 of 36,000",
        "held states  base 56% -> base + residual 93%",
        "validation   best 90%, while training",
        "algorithm.utd  4.0  (default 1.0)",
        "24k steps",
        "not tracked",
        f"pld-ray eval --checkpoint={run}/checkpoints/best",
    ):
        assert words in out
    assert "--resume" not in out


def test_a_dip_below_the_base_policy_is_seen_on_the_same_states(tmp_path, make_run, capsys):
    run = make_run(tmp_path / "run", evaluations=[(7000, 0.4), (9000, 0.2), (12000, 0.9)], held=0.9)
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"env_steps": 7000, "eval/validation_base_success": 0.44}\n')
        file.write('{"env_steps": 12000, "eval/residual_success": 0.8}\n')
    assert main(["show", str(run)]) == 0
    line = "validation   base 44% -> best 90%, least 20%, while training"
    assert line in capsys.readouterr().out
    assert main(["show", str(run), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["validation_base_success"] == 0.44
    assert shown["least_validation_success"] == 0.2


def test_a_run_without_a_base_policy_compares_with_none(tmp_path, make_run, capsys):
    run = make_run(tmp_path / "run", policy=PolicyConfig(type="none"), failed="RunError: why")
    assert main(["show", str(run)]) == 0
    assert "held states  at the end of the run" in capsys.readouterr().out
    summary = {"base_success": None, "residual_success": 0.9}
    (run / "summary.json").write_text(json.dumps(summary))
    assert main(["show", str(run)]) == 0
    assert "held states  learnt policy 90%" in capsys.readouterr().out


def test_a_failed_run_says_why(tmp_path, make_run, capsys):
    run = make_run(tmp_path / "run", evaluations=CURVE, failed="RunError: the disk is full")
    assert main(["show", str(run)]) == 0
    assert "RunError: the disk is full" in capsys.readouterr().out


def test_a_sweep_shows_its_trials_and_a_trial_resumes_the_sweep(tmp_path, make_run, capsys):
    sweep = tmp_path / "sweep"
    for number, (held, gamma) in enumerate([(0.93, 0.9), (None, 0.95)]):
        trial = make_run(
            sweep / "trials" / f"t000{number}",
            evaluations=CURVE,
            held=held,
            seed=number,
            point=f"algorithm.gamma={gamma}",
        )
    (sweep / "sweep.json").write_text(json.dumps({"state": "interrupted", "num_trials": 3}))
    shown = show(sweep, capsys)
    assert {name: (t["state"], t["point"]) for name, t in shown["trial_rows"].items()} == {
        "t0000": ("finished", "gamma=0.9"),
        "t0001": ("interrupted", "gamma=0.95"),
    }
    assert shown["trials"] == {"finished": 1, "interrupted": 1, "never started": 1}
    assert shown["next"]["resume"] == f"pld-ray sweep --resume={sweep}"
    assert show(trial, capsys)["next"]["resume"] == f"pld-ray sweep --resume={sweep}"
    assert main(["show", str(sweep)]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["best", "trial", "t0000:", "gamma=0.9,", "seed", "0"] in lines
    assert ["state", "point", "seed", "base", "held", "validation"] in lines
    assert ["t0000", "finished", "gamma=0.9", "0", "56%", "93%", "90%"] in lines
    assert ["t0001", "interrupted", "gamma=0.95", "1", "56%", "-", "90%"] in lines


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: path / "nowhere", "nowhere: no such folder; pld-ray ls lists"),
        (lambda path: path, "holds no run: config.yaml is missing"),
    ],
)
def test_a_folder_without_a_run_is_one_sentence(tmp_path, capsys, make, words):
    assert main(["show", str(make(tmp_path))]) == 2
    assert words in capsys.readouterr().err


def test_show_takes_one_folder(capsys):
    assert main(["show"]) == 2
    assert "RUN is missing; usage: pld-ray show RUN" in capsys.readouterr().err
