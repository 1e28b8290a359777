"""The flags of a command, each declared once: reading, `--help` and completion come from there."""

from __future__ import annotations

import argparse
import difflib
import os
import re
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

from pld_ray.errors import UserError

LINE = 98
"""Characters of a line of help."""


class Parser(argparse.ArgumentParser):
    """The arguments of one command; a mistake is one sentence with the usage.

    Args:
        command: its name.
        meaning: what it does; each line is a paragraph.
        takes_settings: there is a configuration, which `--print_config` prints and whose keys
            `--explain` explains; what is not declared here is left for it, in `settings`.
        config_class: of that configuration, see `configuration`.
        other_class: of what a sweep varies, or of `other_action`, where that is another one.
        other_action: the action of the command whose settings are those of `other_class`.
    """

    def __init__(
        self,
        command: str,
        meaning: str = "",
        takes_settings: bool = False,
        config_class: str = "TrainConfig",
        other_class: str | None = None,
        other_action: str | None = None,
    ) -> None:
        super().__init__(
            prog=f"pld-ray {command}",
            description=meaning,
            allow_abbrev=False,
            formatter_class=HelpFormatter,
        )
        self.takes_settings, self.config_class = takes_settings, config_class
        self.other_class, self.other_action = other_class or config_class, other_action
        if takes_settings:
            self.switch("print_config", "print the complete configuration and stop")
            explain = self.value(
                "explain", "KEY", "say what a key, or a group's keys, mean and stop"
            )
            explain.completer = self.configuration_keys

    def positional(self, name: str, meaning: str, count: str | None = None) -> Any:
        """What is given without a flag, shown in capitals; `count` is argparse's `nargs`."""
        return self.add_argument(name, metavar=name.upper(), help=meaning, nargs=count, type=given)

    def switch(self, name: str, meaning: str) -> None:
        """A flag without a value."""
        self.add_argument(f"--{name}", action="store_true", help=meaning)

    def value(
        self,
        name: str,
        metavar: str,
        meaning: str,
        *,
        default: Any = None,
        values: Sequence[str] = (),
        read: Callable[[str], Any] = str,
        required: bool = False,
        repeated: bool = False,
    ) -> Any:
        """A flag with a value.

        Args:
            name: without dashes.
            metavar: the value in the usage.
            meaning: its meaning.
            default: when it is not given.
            values: the only ones that it takes.
            read: of its text; raises ValueError saying what it must be.
            required: it must be given.
            repeated: it may be given several times; the value is a list.
        """
        action: Any = self.add_argument(
            f"--{name}",
            metavar=metavar,
            help=meaning,
            action=Value,
            default=[] if repeated else default,
            required=required,
        )
        action.values, action.read, action.repeated = tuple(values), read, repeated
        if values:
            action.completer = lambda **_: values
        return action

    def read(self, args: Sequence[str]) -> argparse.Namespace:
        """The arguments of a command line; `--explain` and `--print_config` require no others.

        Raises:
            UserError: a flag that is unknown (with the closest one of the command's own), missing,
                given twice or without a value, or a value that does not fit.
        """
        if not self.takes_settings:
            found, rest = self.parse_known_args(args)
        else:
            own, settings = self.settings_apart(args)
            self.check_near(settings)
            if {"--explain", "--print_config"} & {arg.partition("=")[0] for arg in own}:
                for action in self._actions:
                    action.required = False
            found, rest = self.parse_known_args(own)
            found.settings = [*rest, *settings]
        if rest and not self.takes_settings:
            unknown = [arg for arg in rest if arg.startswith("-")]
            self.check_near(unknown)
            unknown = unknown or rest
            self.error(f"{' '.join(unknown)[:200]} is none of its {self.kind(unknown[0])}")
        return found

    def settings_apart(self, args: Sequence[str]) -> tuple[list[str], list[str]]:
        """What is declared here, and the settings, `--key value` as `--key=value`.

        argparse would take a setting's value, or a whole setting with a space in it, for an
        argument of its own.
        """
        own: list[str] = []
        settings: list[str] = []
        waits = False
        ended = args.index("--") if "--" in args else len(args)
        for arg in args[:ended]:
            if waits and not arg.startswith("--"):
                settings[-1] += f"={arg}"
                waits = False
                continue
            flag, equals, _ = arg.partition("=")
            is_setting = flag.startswith("--") and flag not in self._option_string_actions
            (settings if is_setting else own).append(arg)
            waits = is_setting and not equals
        return [*own, *args[ended:]], settings

    def check_near(self, unknown: Sequence[str]) -> None:
        """Refuse what is nearly a flag of this command, and no key of its configuration is nearer.

        Raises:
            UserError: naming that flag.
        """
        own = [flag for flag in self._option_string_actions if flag.startswith("--")]
        for arg in unknown:
            flag = arg.partition("=")[0][:200]
            typed = "--" + flag.lstrip("-").replace("-", "_")
            close = difflib.get_close_matches(typed, own, n=1, cutoff=0.75)
            if close and self.takes_settings:
                keys = (f"--{key}" for key in self.configuration_keys())
                close = difflib.get_close_matches(typed, [*close, *keys], n=1)
            if close and close[0] in own:
                raise UserError(f"flag {flag} does not exist; did you mean {close[0]}?")

    def configurations(self, words: Sequence[str]) -> tuple[Any, Any]:
        """The class that the settings of these words are of, and the other one."""
        names = (self.config_class, self.other_class)
        first, second = reversed(names) if self.other_action in words else names
        return configuration(first), configuration(second)

    def configuration_keys(self, **_: Any) -> list[str]:
        """Every key and group of the command's configurations."""
        from pld_ray.config.explain import config_fields

        own, other = self.configurations(())
        return list({**config_fields(own), **config_fields(other)})

    def class_with(self, key: str, words: Sequence[str] = ()) -> Any:
        """The configuration that has a key: that of these words, else the other one."""
        from pld_ray.config.explain import config_fields

        own, other = self.configurations(words)
        group = key.removeprefix("--").partition(".")[0]
        return own if group in config_fields(own) else other

    def kind(self, arg: str) -> str:
        """What someone wanted to give."""
        return "flags" if arg.startswith("-") else "arguments"

    def error(self, message: str) -> Any:
        """argparse's messages as sentences."""
        if needs := re.fullmatch(r"argument (--\S+): expected one argument", message):
            raise UserError(f"{needs[1]} needs a value: {needs[1]}=VALUE")
        message = re.sub(rf"^argument (\S+): {EMPTY}$", rf"\1 {EMPTY}", message)
        if lacks := re.fullmatch(r"the following arguments are required: (.*)", message):
            verb = "are" if "," in lacks[1] else "is"
            message = f"{lacks[1]} {verb} missing"
        raise UserError(f"{message}; {self.format_usage().strip()}")

    def format_usage(self) -> str:
        """One line: positionals, required flags, and the others where they fit into it."""
        actions = [a for a in self._actions if a.dest != "help"]
        actions.sort(key=lambda a: (bool(a.option_strings), not a.required))
        first = [
            HelpFormatter.named(a) if a.required else f"[{a.metavar}]"
            for a in actions
            if a.required or not a.option_strings
        ]
        others = [
            f"[{HelpFormatter.named(a)}]" for a in actions if not a.required and a.option_strings
        ]
        settings = ["[--key=value ...]"] if self.takes_settings else []
        line = " ".join(["usage:", self.prog, *first, *others, *settings])
        if len(line) > LINE:
            line = " ".join(["usage:", self.prog, *first, *(settings or ["[options]"])])
        return f"{line}\n"

    def format_help(self) -> str:
        """The usage, the description and every argument with its meaning."""
        self.usage = self.format_usage().removeprefix("usage: ").strip().replace("%", "%%")
        return super().format_help()


class Value(argparse.Action):
    """Stores a value that was checked and read; a second one is refused unless it may repeat."""

    values: tuple[str, ...]
    read: Callable[[str], Any]
    repeated: bool

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        flag = self.option_strings[0]
        present = getattr(namespace, self.dest)
        if not self.repeated and present is not self.default:
            raise UserError(f"{flag} is given twice: keep one of them")
        if not values:
            raise UserError(f"{flag}= {EMPTY}: write {flag}={self.metavar}, or leave it out")
        values = os.path.expanduser(values)
        if self.values and values not in self.values:
            listed = (", " if len(self.values) > 2 else " or ").join(self.values)
            raise UserError(f"{flag}={values[:200]}: must be {listed}")
        try:
            value = self.read(values)
        except ValueError as error:
            raise UserError(f"{flag}={values[:200]}: must be {error}") from error
        setattr(namespace, self.dest, [*present, value] if self.repeated else value)


class HelpFormatter(argparse.HelpFormatter):
    """argparse's, with flags as they are typed, `--key=VALUE`."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28, width=LINE)

    @staticmethod
    def named(action: argparse.Action) -> str:
        """An argument as it is typed."""
        if not action.option_strings:
            return f"{action.metavar}{'...' if action.nargs == '+' else ''}"
        flag = action.option_strings[-1]
        return flag if action.nargs == 0 else f"{flag}={action.metavar}"

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n".join(textwrap.fill(line, width) for line in text.splitlines())

    def _format_action_invocation(self, action: argparse.Action) -> str:
        return self.named(action)


EMPTY = "is empty"
"""An argument, as of a variable of the shell that is not set."""


def given(text: str) -> str:
    """A text that is one, with the home folder in place of `~`."""
    if not text:
        raise argparse.ArgumentTypeError(EMPTY)
    return os.path.expanduser(text)


def whole_number(text: str) -> int:
    """A number from 1 on."""
    if re.fullmatch(r"[0-9]{1,9}", text) is None or int(text) < 1:
        raise ValueError("a whole number from 1 on")
    return int(text)


def on_this_machine(text: str) -> str:
    """A path, and no address."""
    from pld_ray.options import LOCAL

    if "://" in text:
        raise ValueError(LOCAL)
    return text


def configuration(name: str) -> Any:
    """The class of a command's configuration by its name, imported only when it is asked for."""
    from pld_ray.config import TrainConfig
    from pld_ray.config.acrlpd_train import NAMED
    from pld_ray.config.classifier import ClassifierConfig
    from pld_ray.config.distill import DistillConfig

    if name == "SweepConfig":
        from pld_ray.sweep.config import SweepConfig

        return SweepConfig
    classes = (*NAMED.values(), DistillConfig, ClassifierConfig)
    return {each.__name__: each for each in classes}.get(name, TrainConfig)
