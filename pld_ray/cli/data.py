"""`pld-ray data`."""

from __future__ import annotations

import argparse
import pathlib

from pld_ray.cli.arguments import Parser, on_this_machine
from pld_ray.config import ConfigError


def parser() -> Parser:
    """The arguments of the command."""
    parser = Parser(
        "data",
        "Prints what is in a LeRobotDataset and writes a page with film strips and the "
        "courses of state and action, by default DATASET/dataset.html. The page loads "
        "nothing from elsewhere.",
    )
    parser.positional("dataset", "folder of a LeRobotDataset")
    parser.value(
        "episodes",
        "0,7",
        "which to show; by default a success, a failure, the shortest and the longest",
    )
    parser.value("output", "FILE.html", "another place for the page", read=on_this_machine)
    parser.switch("no_page", "print only")
    return parser


def run(args: argparse.Namespace) -> int:
    """Show a dataset."""
    if args.no_page and (given := [k for k in ("episodes", "output") if getattr(args, k)]):
        raise ConfigError(f"--{given[0]} is of the page, which --no_page leaves out: remove one")
    from pld_ray.cli.ls import plain_console
    from pld_ray.data.dataset import Dataset
    from pld_ray.data.page import facts, render
    from pld_ray.data.summary import chosen_episodes, summarize

    dataset = Dataset(args.dataset)
    wanted, number = args.episodes, len(dataset.episodes)
    numbers = None if wanted is None else parse_episodes(wanted, number)
    summary = summarize(dataset)
    console = plain_console()
    for name, figure in facts(summary).items():
        console.print(f"{name:10}{figure}", soft_wrap=True)
    width = max((len(f"{d.feature} {d.name}") for d in summary.dimensions), default=0)
    header = "".join(f"{name:>11}" for name in ("lowest", "1 %", "median", "99 %", "highest"))
    console.print(f"{'':{width}}{header}", soft_wrap=True)
    for d in summary.dimensions:
        figures = "".join(f"{v:11.4g}" for v in (d.low, d.q01, d.median, d.q99, d.high))
        label = f"{d.feature} {d.name}"
        console.print(f"{label:{width}}{figures}  {d.mark}".rstrip(), soft_wrap=True)
    for note in summary.notes:
        console.print(f"look at: {note}", soft_wrap=True)
    if not args.no_page:
        path = pathlib.Path(args.output) if args.output else dataset.root / "dataset.html"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(render(summary, numbers or chosen_episodes(summary)))
        console.print(f"page: {path}", soft_wrap=True)
    return 0


def parse_episodes(text: str, number: int) -> list[int]:
    """`0,7` -> [0, 7]."""
    try:
        episodes = [int(item) for item in text.split(",")]
    except ValueError:
        episodes = [-1]
    if not all(0 <= episode < number for episode in episodes):
        raise ConfigError(f"--episodes={text}: must be numbers from 0 to {number - 1}, as in 0,7")
    return episodes
