"""Completion scripts for bash, zsh and fish: commands, flags, their values, and files.

The scripts are written out in full, so that pressing TAB starts no Python.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from dataclasses import dataclass

from envs.suites import suite_names, suite_tasks
from pld_ray.config.explain import choices, config_fields
from pld_ray.options import Field

FLAG = re.compile(r"--([a-z][\w.]*)(=?)([a-z0-9_]+(?:\|[a-z0-9_]+)+)?( [A-Z]+)?")
"""`--json`, `--sort=name|steps`, `--explain KEY` in a command's usage."""
FILES = ("path", "dir", "file", "resume", "checkpoint", "cache", "critic", "weights", "assets")
"""Ends of the names of flags whose value is a file or folder."""
CONFIG_COMMANDS = ("train", "pretrain")
"""Commands that take every key of `TrainConfig`."""


@dataclass(frozen=True)
class Flag:
    """One flag of a command, without its dashes."""

    name: str
    takes_value: bool
    values: tuple[str, ...] = ()
    """What it may be, where that is a short list."""
    words: str = ""

    @property
    def takes_file(self) -> bool:
        """Whether its value is a file or folder."""
        return self.takes_value and not self.values and self.name.endswith(FILES)


@dataclass(frozen=True)
class Command:
    """One command and its flags."""

    name: str
    words: str
    flags: list[Flag]
    values: tuple[str, ...] = ()
    """What its positional argument may be; files otherwise."""


def script(shell: str) -> str:
    """The completion script of a shell.

    Raises:
        ConfigError: no such shell.
    """
    from pld_ray.config import ConfigError

    if shell not in SHELLS:
        raise ConfigError(f"{shell}: pld-ray completion knows {', '.join(SHELLS)}")
    return SHELLS[shell](known_commands())


def known_commands() -> list[Command]:
    """Every command of `pld-ray`, with the flags that its usage names and its configuration's."""
    from pld_ray.cli.entry import COMMANDS

    found = []
    for name, words in COMMANDS.items():
        usage = importlib.import_module(f"pld_ray.cli.{name.replace('-', '_')}").USAGE
        flags = {flag.name: flag for flag in usage_flags(usage)}
        if name in CONFIG_COMMANDS:
            own = {flag.name: flag for flag in config_flags()}
            shown = {n: f for n, f in flags.items() if n not in own and n != "key"}
            flags = {"config_path": Flag("config_path", True)} | shown | own
        flags.pop("key", None)
        values = tuple(SHELLS) if name == "completion" else ()
        found.append(Command(name, words, [*flags.values(), Flag("help", False)], values))
    return found


def usage_flags(usage: str) -> list[Flag]:
    """The flags that a usage text names; one that ever has a value takes one."""
    flags: dict[str, Flag] = {}
    for name, equals, listed, spaced in FLAG.findall(usage):
        values = tuple(listed.split("|")) if listed else ()
        known = flags.get(name, Flag(name, False))
        takes_value = known.takes_value or bool(equals or spaced)
        flags[name] = Flag(name, takes_value, known.values or values)
    return list(flags.values())


def config_flags() -> list[Flag]:
    """Every key of the configuration that has a value."""
    return [
        Flag(field.key, True, tuple(values_of(field)), field.words)
        for field in config_fields().values()
        if not field.is_group
    ]


def values_of(field: Field) -> list[str]:
    """What to offer for a key: its choices, or the suites and tasks that are installed."""
    if field.key == "env.suite":
        return suite_names()
    if field.key == "env.task":
        return [task for suite in suite_names() for task in tasks_of(suite)]
    return choices(field)


def tasks_of(suite: str) -> list[str]:
    """Its tasks; none where LIBERO is not installed."""
    try:
        return suite_tasks(suite)
    except ImportError:
        return []


def keys() -> list[str]:
    """What `--explain` takes."""
    return list(config_fields())


# --- bash -----------------------------------------------------------------------------------------

BASH = """# bash completion for pld-ray; load it with: source <(pld-ray completion bash)
_pld_ray() {
    local IFS=$'\\n'
    local line="${COMP_LINE:0:COMP_POINT}"
    local current="${line##*[[:space:]]}" command="${COMP_WORDS[1]}"
    local flag="${current%%=*}" value="${current#*=}" flags="" values=""
    COMPREPLY=()
    if ((COMP_CWORD == 1)); then
        COMPREPLY=($(compgen -W @COMMANDS@ -- "$current"))
        return
    fi
    case "$command" in
@FLAGS@
    esac
    if [[ $current == --*=* ]]; then
        case "$command $flag" in
@VALUES@
        esac
        if [[ -n $values ]]; then
            COMPREPLY=($(compgen -W "$values" -- "$value"))
        else
            COMPREPLY=($(compgen -f -- "$value"))
            type compopt &>/dev/null && compopt -o filenames
        fi
        [[ $COMP_WORDBREAKS == *=* ]] || COMPREPLY=("${COMPREPLY[@]/#/$flag=}")
    elif [[ $current == -* ]]; then
        COMPREPLY=($(compgen -W "$flags" -- "$current"))
        [[ ${COMPREPLY[0]} != *= ]] || { type compopt &>/dev/null && compopt -o nospace; }
    elif [[ ${COMP_WORDS[COMP_CWORD - 1]} == --explain ]]; then
        COMPREPLY=($(compgen -W @KEYS@ -- "$current"))
    elif [[ $command == completion ]]; then
        COMPREPLY=($(compgen -W @SHELLS@ -- "$current"))
    else
        COMPREPLY=($(compgen -f -- "$current"))
        type compopt &>/dev/null && compopt -o filenames
    fi
}
complete -F _pld_ray pld-ray
"""


def bash(commands: list[Command]) -> str:
    """For bash 3.2 and later."""

    def listed(words: list[str]) -> str:
        return quoted("\n".join(words))

    flags = [
        f"    {name_all(same)})\n        flags={listed([spelled(f) for f in same[0].flags])} ;;"
        for same in alike(commands)
    ]
    values = [
        f"        {cases}) values={listed(list(words))} ;;" for words, cases in cases_of(commands)
    ]
    return fill(
        BASH,
        COMMANDS=listed([command.name for command in commands]),
        FLAGS="\n".join(flags),
        VALUES="\n".join(values),
        KEYS=listed(keys()),
        SHELLS=listed(list(SHELLS)),
    )


# --- zsh ------------------------------------------------------------------------------------------

ZSH = """#compdef pld-ray
# zsh completion for pld-ray; load it with: source <(pld-ray completion zsh)
_pld_ray() {
    local command=${words[2]} flag
    local -a commands valued bare
    if ((CURRENT == 2)); then
        commands=(@COMMANDS@)
        _describe command commands
        return
    fi
    if [[ $PREFIX == --*=* ]]; then
        flag=${PREFIX%%=*}
        compset -P '*='
        case "$command $flag" in
@VALUES@
        *) _files ;;
        esac
        return
    fi
    case $command in
@FLAGS@
    esac
    if [[ $PREFIX == -* ]]; then
        _describe -o flag valued -S '' -- bare
    elif [[ ${words[CURRENT-1]} == --explain ]]; then
        compadd -- @KEYS@
    elif [[ $command == completion ]]; then
        compadd -- @SHELLS@
    else
        _files
    fi
}
if [[ ${funcstack[1]} == _pld_ray ]]; then
    _pld_ray "$@"
else
    compdef _pld_ray pld-ray
fi
"""


def zsh(commands: list[Command]) -> str:
    """For zsh with `compinit`; sourced, or as `_pld_ray` in a folder of `fpath`."""

    def described(name: str, words: str) -> str:
        name, words = name.replace(":", "\\:"), first_sentence(words)
        return quoted(f"{name}:{words}" if words else name)

    flags = []
    for same in alike(commands):
        by_kind = {True: "", False: ""}
        for flag in same[0].flags:
            by_kind[flag.takes_value] += " " + described(spelled(flag), flag.words)
        flags.append(
            f"    {name_all(same)})\n        valued=({by_kind[True][1:]})\n"
            f"        bare=({by_kind[False][1:]}) ;;"
        )
    values = [
        f"        {cases}) compadd -- {' '.join(words)} ;;" for words, cases in cases_of(commands)
    ]
    return fill(
        ZSH,
        COMMANDS=" ".join(described(command.name, command.words) for command in commands),
        FLAGS="\n".join(flags),
        VALUES="\n".join(values),
        KEYS=" ".join(keys()),
        SHELLS=" ".join(SHELLS),
    )


# --- fish -----------------------------------------------------------------------------------------


def fish(commands: list[Command]) -> str:
    """For fish 3."""
    lines = ["# fish completion for pld-ray; load it with: pld-ray completion fish | source"]
    for command in commands:
        lines.append(
            f"complete -c pld-ray -f -n __fish_use_subcommand -a {command.name} "
            f"-d {quoted(first_sentence(command.words))}"
        )
        if command.values:
            lines.append(
                f"complete -c pld-ray -f -n '__fish_seen_subcommand_from {command.name}' "
                f"-a {quoted(' '.join(command.values))}"
            )
    for same in alike(commands):
        names = " ".join(command.name for command in same)
        for flag in same[0].flags:
            line = f"complete -c pld-ray -n '__fish_seen_subcommand_from {names}' -l {flag.name}"
            values = keys() if flag.name == "explain" else list(flag.values)
            if values:
                line += f" -x -a {quoted(' '.join(values))}"
            elif flag.takes_value:
                line += " -r" if flag.takes_file else " -x"
            if flag.words:
                line += f" -d {quoted(first_sentence(flag.words))}"
            lines.append(line)
    return "\n".join(lines) + "\n"


SHELLS: dict[str, Callable[[list[Command]], str]] = {"bash": bash, "zsh": zsh, "fish": fish}


# --- shared ---------------------------------------------------------------------------------------


def spelled(flag: Flag) -> str:
    """As it is typed, with `=` where a value follows; `--explain` takes it after a space."""
    return f"--{flag.name}{'=' if flag.takes_value and flag.name != 'explain' else ''}"


def alike(commands: list[Command]) -> list[list[Command]]:
    """Commands with the same flags, together."""
    groups: dict[tuple[Flag, ...], list[Command]] = {}
    for command in commands:
        groups.setdefault(tuple(command.flags), []).append(command)
    return list(groups.values())


def name_all(commands: list[Command]) -> str:
    """A shell pattern of their names."""
    return " | ".join(command.name for command in commands)


def cases_of(commands: list[Command]) -> list[tuple[tuple[str, ...], str]]:
    """Lists of values, each with the shell pattern of the `command --flag` pairs that take it."""
    patterns: dict[tuple[str, ...], list[str]] = {}
    for command in commands:
        for flag in command.flags:
            if flag.values:
                patterns.setdefault(flag.values, []).append(f'"{command.name} --{flag.name}"')
    return [(values, " | ".join(pairs)) for values, pairs in patterns.items()]


def first_sentence(words: str) -> str:
    """As far as the first full stop, without backquotes."""
    return re.split(r"[.;](?:\s|$)", words.replace("`", ""), maxsplit=1)[0].replace(":", " -")


def quoted(text: str) -> str:
    """In single quotes for any of the shells."""
    return "'" + text.replace("'", "'\\''") + "'"


def fill(template: str, **parts: str) -> str:
    """Put parts in the place of `@NAME@`."""
    for name, part in parts.items():
        template = template.replace(f"@{name}@", part)
    return template
