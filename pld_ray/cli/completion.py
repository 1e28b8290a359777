"""`pld-ray completion`."""

from __future__ import annotations

USAGE = """usage: pld-ray completion bash|zsh|fish

Prints the script. To load it in every shell:
  bash   echo 'source <(pld-ray completion bash)' >> ~/.bashrc
  zsh    echo 'source <(pld-ray completion zsh)' >> ~/.zshrc      (after compinit)
  fish   pld-ray completion fish > ~/.config/fish/completions/pld-ray.fish
"""


def run(args: list[str]) -> int:
    """Print the script of one shell."""
    from pld_ray.cli.completion_script import script
    from pld_ray.config import ConfigError

    if len(args) != 1:
        raise ConfigError(f"pld-ray completion takes one shell; {USAGE.splitlines()[0]}")
    print(script(args[0]), end="")
    return 0
