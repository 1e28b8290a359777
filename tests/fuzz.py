"""Bad configurations by the thousand: `python -m tests.fuzz` checks that each is refused in words.

Every key of a run and of a sweep is given each of `BAD_VALUES`, as a flag and in a file, through
the validation that starting uses; `malformed_files` are read as both. With `--start` each
different run that was accepted is then trained for one step, one after the other in this process
and on one Ray, in an environment without a simulator and without a base policy.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from pld_ray.config import ConfigError, TrainConfig
from pld_ray.config.file import encode, is_text, load_config
from pld_ray.config.start_check import check_start
from pld_ray.options import fields_of
from pld_ray.sweep.config import SweepConfig, load_sweep

BAD_VALUES = {
    "null": "null",
    "nan": ".nan",
    "infinity": ".inf",
    "minus one": "-1",
    "1e20": "1.0e+20",
    "twenty digits": "12345678901234567890",
    "a word": "foo",
    "a superscript": '"\\u00b2"',
    "a list": "[null, -1]",
    "a mapping": "{a: -1}",
    "true": "true",
    "an empty text": '""',
}
"""Name -> the value as YAML."""

SMALLEST = {
    "env.entry_point": "envs.point:PointEnv",
    "env.kwargs": {"episode_length": 5},
    "policy.type": "none",
    "algorithm.offline_episodes": 0,
    "algorithm.warmup_steps": 2,
    "algorithm.batch_size": 2,
    "algorithm.online_capacity": 100,
    "algorithm.offline_capacity": 100,
    "algorithm.hidden_dims": [4],
    "algorithm.use_probing": False,
    "runners.num_env_runners": 0,
    "runners.sample_steps": 2,
    "evaluation.interval_steps": 0,
    "evaluation.held_states": 1,
    "evaluation.validation_states": 1,
    "checkpoint.interval_steps": 0,
    "total_steps": 1,
}
"""A run of one step, to which the bad value is added."""


@dataclass(frozen=True)
class Pair:
    """One key with one bad value, and what became of it."""

    key: str
    value: str
    refusal: str | None
    config: TrainConfig | None = None


def run_pairs(folder: pathlib.Path) -> Iterator[Pair]:
    """Every key of a run with every bad value, in a file and as a flag."""
    small = [f"--{key}={value}" for key, value in SMALLEST.items()]
    file = folder / "run.yaml"
    fields = {field.key: field for field in fields_of(TrainConfig)}
    for field in fields.values():
        same = (f"--{field.key}=", f"--{field.key}.")
        own = [flag for flag in small if not flag.startswith(same)]
        for name, text in BAD_VALUES.items():
            flag = f"--{field.key}={text}"
            file.write_text(f"{nested(field.key, text)}\n")
            in_file = attempt([f"--config_path={file}", *own])
            as_flag = attempt([*own, flag])
            refusal = in_file[1] or as_flag[1]
            yield Pair(field.key, name, refusal, in_file[0] or as_flag[0])
    for key in ("seed", "collection_seed", "algorithm.vision_encoder_seed"):
        greatest = fields[key].option.within.rpartition(" ")[2].rstrip("]")
        config, refusal = attempt([*small, f"--{key}={greatest}"])
        yield Pair(key, greatest, refusal, config)


def sweep_pairs(folder: pathlib.Path) -> Iterator[Pair]:
    """Every key of a sweep, and every domain of a space, with every bad value."""
    file = folder / "sweep.yaml"
    space = "space: {algorithm.utd: {grid: [1, 2]}}"
    keys = [field.key for field in fields_of(SweepConfig)]
    domains = ("grid", "choice", "uniform", "loguniform", "quniform", "randint")
    for name, text in BAD_VALUES.items():
        for key in keys:
            body = nested(key, text) if key == "space" else f"{space}\n{nested(key, text)}"
            yield Pair(key, name, refused_sweep(file, body))
        for domain in domains:
            for values in (text, f"[{text}]", f"[{text}, {text}]", f"[1, {text}]"):
                body = f"space: {{algorithm.utd: {{{domain}: {values}}}}}"
                yield Pair(f"space {domain} {values}", name, refused_sweep(file, body))
        for place in ("set: {algorithm.utd: %s}", "variants: {a: {algorithm.n_step: %s}}"):
            yield Pair(place, name, refused_sweep(file, f"{space}\n{place % text}"))


def attempt(args: list[str]) -> tuple[TrainConfig | None, str | None]:
    """The configuration, or the sentence that refused it; anything else that is raised escapes."""
    try:
        config = load_config(TrainConfig, args)
        check_start(config)
    except ConfigError as error:
        return None, str(error)
    return config, None


def refused_sweep(file: pathlib.Path, body: str) -> str | None:
    """The sentence that refused a sweep file; None if it can run."""
    from pld_ray.sweep.plan import num_trials, sweep_points

    file.write_text(body + "\n")
    try:
        sweep = load_sweep([str(file)])
        for point in sweep_points(sweep)[:20]:
            sweep.trial_config(point)
        assert num_trials(sweep) <= 10_000
    except ConfigError as error:
        return str(error)
    return None


def nested(key: str, text: str) -> str:
    """A dotted key with its value, as YAML."""
    *groups, name = key.split(".")
    return "".join(f"{{{group}: " for group in groups) + f"{{{name}: {text}}}" + "}" * len(groups)


# --- malformed files ------------------------------------------------------------------------------


def malformed_files(count: int = 240, seed: int = 0) -> Iterator[tuple[str, bytes]]:
    """Name and content of files that nobody should write; the same ones for a seed."""
    preset = pathlib.Path("pld_ray/presets/rlpd.yaml").read_bytes()
    draw = random.Random(seed)
    yield from ODD_FILES.items()
    kinds = ("noise", "cut", "flipped", "utf-16", "doubled", "spliced")
    for index in range(count - len(ODD_FILES)):
        kind = kinds[index % len(kinds)]
        if kind == "noise":
            content = draw.randbytes(draw.randint(1, 400))
        elif kind == "cut":
            content = preset[: draw.randint(1, len(preset))]
        elif kind == "flipped":
            flipped = bytearray(preset)
            for _ in range(draw.randint(1, 8)):
                flipped[draw.randrange(len(flipped))] = draw.randrange(256)
            content = bytes(flipped)
        elif kind == "utf-16":
            start = draw.randint(0, 200)
            content = preset[start:].decode().encode(draw.choice(["utf-16", "utf-16-le", "utf-32"]))
        elif kind == "doubled":
            content = preset + b"\n" + preset[draw.randint(0, 300) :]
        else:
            cut = draw.randint(0, len(preset))
            content = preset[:cut] + draw.choice(SPLICES) + preset[cut:]
        yield f"{kind} {index}", content


SPLICES = [b"\t", b": :", b"[[[", b"{", b"&a *a", b"<<: *b", b"!!python/name:os.system ", b"\x00"]
LAUGHS = b"a0: &a0 [x]\n" + b"".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n".encode() for i in range(1, 12)
)
ODD_FILES = {
    "empty": b"",
    "a list": b"- 1\n- 2\n",
    "a number": b"7\n",
    "two documents": b"seed: 1\n---\nseed: 2\n",
    "a key twice": b"seed: 1\nseed: 2\n",
    "a key twice below": b"algorithm: {utd: 1, utd: 2}\n",
    "a cycle": b"algorithm: &a {hidden_dims: *a}\n",
    "a cycle of lists": b"env: {kwargs: {a: &a [*a]}}\n",
    "billion laughs": LAUGHS,
    "laughs in a mapping": b"env: {kwargs: {" + LAUGHS.replace(b"\n", b",") + b"}}\n",
    "deep lists": b"seed: " + b"[" * 20_000 + b"]" * 20_000,
    "deep mappings": b"{a: " * 2_000 + b"1" + b"}" * 2_000,
    "large": b"# " + b"x" * 2_000_000,
    "a long key": b"x" * 100_000 + b": 1\n",
    "digits": b"seed: " + b"9" * 10_000 + b"\n",
    "a key that is a list": b"? [seed]\n: 1\n",
    "a key that is null": b"null: 1\n",
    "a key that is a number": b"7: 1\n",
    "a date": b"seed: 2024-01-01\n",
    "no date": b"seed: 2024-99-99\n",
    "a time": b"seed: 12:30:45\n",
    "an object": b"seed: !!python/object/apply:os.system ['touch /tmp/planted']\n",
    "a name": b"env: !!python/name:os.system\n",
    "an unknown tag": b"seed: !mine 1\n",
    "a set": b"seed: !!set {1}\n",
    "bytes": b"env: {kwargs: {a: !!binary aGk=}}\n",
    "an empty int": b'seed: !!int ""\n',
    "no bool": b"seed: !!bool maybe\n",
    "no float": b"seed: !!float x\n",
    "merge of a number": b"<<: 7\n",
    "merge of a text": b"algorithm:\n  <<: text\n",
    "a surrogate": b'env: {task: "\\ud800"}\n',
    "a null byte": b'output_dir: "a\\0b"\n',
    "a long name": b"output_dir: " + b"x" * 300 + b"\n",
    "a long path": b"output_dir: " + b"x/" * 3000 + b"\n",
    "a group that is a list": b"env: [1, 2]\n",
    "a group that is null": b"algorithm: null\n",
    "an unknown group": b"algoritm: {utd: 1}\n",
    "tabs": b"env:\n\ttask: lift_the_can\n",
    "latin-1": "env: {task: caf\u00e9}".encode("latin-1"),
    "percent": b"%YAML 9.9\n---\nseed: 1\n",
}


def read_malformed(folder: pathlib.Path) -> Counter[str]:
    """How many malformed files were refused and how many are configurations after all."""
    counts: Counter[str] = Counter()
    for index, (_, content) in enumerate(malformed_files()):
        file = folder / f"{index}.yaml"
        file.write_bytes(content)
        _, refusal = attempt([f"--config_path={file}"])
        counts["refused" if refusal else "accepted"] += 1
        check_sentence(refusal, str(file))
        try:
            load_sweep([str(file)])
        except ConfigError as error:
            check_sentence(str(error), str(file))
    return counts


def check_sentence(refusal: str | None, name: str) -> None:
    """A refusal is one line of bounded length that names what it is about."""
    if refusal is not None:
        assert "\n" not in refusal, refusal
        assert len(refusal) < 1500, refusal[:300]
        assert name in refusal, (name, refusal)


# --- starting -------------------------------------------------------------------------------------


def distinct(pairs: list[Pair]) -> list[Pair]:
    """The accepted pairs whose configuration is another than the smallest run's, each once.

    Of the texts that a key of any text takes, `TEXTS` stand for all.
    """
    texts = {field.key for field in fields_of(TrainConfig) if is_text(field)}
    small, _ = attempt([f"--{key}={value}" for key, value in SMALLEST.items()])
    assert small is not None
    seen = [encode(small)]
    found = []
    for pair in pairs:
        if pair.key in texts and pair.value in BAD_VALUES and pair.value not in TEXTS:
            continue
        if pair.config is not None and (plain := encode(pair.config)) not in seen:
            seen.append(plain)
            found.append(pair)
    return found


TEXTS = ("null", "a word", "a superscript", "an empty text")
OWN_RAY = ("ray_address", "placement.env_vars", "placement.working_dir")
"""Keys that say how Ray starts: each of their runs starts its own, the others share one."""


def start_all(pairs: list[Pair], folder: pathlib.Path) -> list[str]:
    """Train each accepted run for one step; what failed with anything but a sentence."""
    import traceback

    import ray

    from pld_ray.errors import user_error
    from pld_ray.jobs.cluster import start_ray
    from pld_ray.jobs.train import train

    os.chdir(folder)  # for relative paths
    failed = []
    for index, pair in enumerate(sorted(pairs, key=lambda pair: pair.key not in OWN_RAY)):
        assert pair.config is not None
        if pair.key != "output_dir":
            pair.config.output_dir = str(folder / str(index))
        if pair.key not in OWN_RAY and not ray.is_initialized():
            start_ray(TrainConfig())
        started = time.monotonic()
        try:
            train(pair.config)
            outcome = "started"
        except Exception as error:
            told = user_error(error)
            outcome = f"refused: {told}" if told is not None else "TRACEBACK"
            if told is None:
                failed.append(f"{pair.key}={pair.value}: {type(error).__name__}: {error}")
                traceback.print_exc()
        wall_s = time.monotonic() - started
        what = f"{index + 1}/{len(pairs)} {pair.key}={pair.value}"
        print(f"{what} ({wall_s:.1f} s): {outcome}", flush=True)
    ray.shutdown()
    os.chdir("/")
    return failed


def main(argv: list[str] | None = None) -> int:
    """Run everything; exit status 1 if a configuration that was accepted does not start."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--start", action="store_true", help="train what is accepted for a step")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        runs, sweeps = list(run_pairs(folder)), list(sweep_pairs(folder))
        for pair in (*runs, *sweeps):
            check_sentence(pair.refusal, "")
        refused = sum(pair.refusal is not None for pair in (*runs, *sweeps))
        print(f"{len(runs)} pairs of a run and {len(sweeps)} of a sweep: {refused} refused")
        counts = read_malformed(folder)
        print(f"{counts.total()} malformed files: {counts['refused']} refused")
        accepted = distinct(runs)
        print(f"{len(accepted)} different runs were accepted")
        failed = start_all(accepted, folder) if options.start else []
    print("\n".join(failed))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
