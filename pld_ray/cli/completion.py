"""`pld-ray completion`, and what TAB asks for: argcomplete over the parsers of the commands."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
from collections.abc import Sequence
from typing import Any

import argcomplete
import argcomplete.io

from pld_ray.cli.arguments import Parser

SHELLS = ("bash", "zsh", "fish")


def parser() -> Parser:
    """The arguments of the command."""
    parser = Parser("completion")
    parser.positional("shell", "bash, zsh or fish").completer = lambda **_: SHELLS
    parser.description = """Prints the script. To load it in every shell:
  bash   echo 'source <(pld-ray completion bash)' >> ~/.bashrc
  zsh    echo 'source <(pld-ray completion zsh)' >> ~/.zshrc      (after compinit)
  fish   pld-ray completion fish > ~/.config/fish/completions/pld-ray.fish"""
    return parser


def run(args: argparse.Namespace) -> int:
    """Print the script of one shell."""
    from pld_ray.config import ConfigError

    if args.shell not in SHELLS:
        raise ConfigError(f"{args.shell}: pld-ray completion knows {', '.join(SHELLS)}")
    print(argcomplete.shellcode(["pld-ray"], shell=args.shell), end="")
    return 0


def complete(**answer: Any) -> None:
    """Answer the shell and end the process; `answer` goes to argcomplete."""
    from pld_ray.cli.entry import COMMANDS, module_of

    top = argparse.ArgumentParser("pld-ray", add_help=False)
    commands = top.add_subparsers(parser_class=argparse.ArgumentParser)
    typed = os.environ["COMP_LINE"][: int(os.environ["COMP_POINT"])].split()
    for name, meaning in COMMANDS.items():
        commands.add_parser(name, help=meaning)
        if name in typed[1:2]:
            commands.choices[name] = with_settings(module_of(name).parser(), name, typed)
    Finder()(top, always_complete_options=False, **answer)


def with_settings(parser: Parser, command: str, typed: Sequence[str]) -> Parser:
    """Declare every key of the configuration that was typed for, as its fields say."""
    if not parser.takes_settings:
        return parser
    from pld_ray.options import choices_of, fields_of

    config_class: type = parser.configurations(typed)[0]
    if command != "sweep":
        parser.value("config_path", "FILE", "file, or shipped preset").completer = files_and_presets
    for field in fields_of(config_class):
        if not field.is_group:
            key = parser.value(field.key, "VALUE", first_sentence(field.meaning))
            if field.key in INSTALLED:
                key.completer = INSTALLED[field.key]
            elif values := choices_of(field.hint, field.option):
                key.completer = lambda values=values, **_: values
    return parser


def files_and_presets(prefix: str, **_: Any) -> list[str]:
    """What `--config_path` takes."""
    from pld_ray.config.presets import preset_names

    return [*preset_names(), *argcomplete.FilesCompleter()(prefix)]


def suites(**_: Any) -> list[str]:
    """The task suites."""
    from envs.suites import suite_names

    return suite_names()


def tasks(**_: Any) -> list[str]:
    """The tasks of every suite that is installed."""
    from envs.suites import suite_names, suite_tasks

    found: list[str] = []
    for suite in suite_names():
        with contextlib.suppress(ImportError):  # LIBERO may be missing
            found += suite_tasks(suite)
    return found


INSTALLED = {"env.suite": suites, "env.task": tasks}
"""Keys whose values are asked for when they are completed."""


class Finder(argcomplete.CompletionFinder):
    """argcomplete's, with `=` behind a flag that takes a value."""

    def _init_debug_stream(self) -> None:
        argcomplete.io.debug_stream = sys.stderr  # not descriptor 9, which may be another's

    def _include_options(self, action: argparse.Action, cword_prefix: str) -> list[str]:
        found: list[str] = super()._include_options(action, cword_prefix)
        if action.nargs == 0:
            return found
        self._display_completions |= {f"{flag}=": action.help or "" for flag in found}
        return [f"{flag}=" for flag in found]


def first_sentence(text: str) -> str:
    """As far as the first full stop, without backquotes."""
    return re.split(r"[.;](?:\s|$)", text.replace("`", ""), maxsplit=1)[0]
