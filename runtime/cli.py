"""The `kvedge` command: a group whose commands are imported only when they are called."""

from __future__ import annotations

import os
import signal
import sys
from importlib import import_module

import click

from kvedge.targets.errors import KvedgeError

_COMMANDS = {
    "export": ("kvedge.export.command:export", "Rewrite a model so that its KV cache is paged, quantized and cyclic."),
    "build": (
        "kvedge.export.build.command:build",
        "A TensorRT engine from an artifact, on its device.",
    ),
    "run": ("kvedge.runtime.command_run:run", "Answer one prompt, streaming."),
    "chat": ("kvedge.runtime.command_chat:chat", "Talk with a model; what it remembers is bounded, the talk is not."),
    "plan": ("kvedge.runtime.command_plan:plan", "Memory of a model's cache, before you run it."),
    "targets": ("kvedge.runtime.command_targets:targets", "Devices that plan and export know as --target."),
    "verify": ("kvedge.export.command_verify:verify", "Compare an artifact with the model that it was made from."),
    "inspect": ("kvedge.runtime.command_inspect:inspect", "What is in an artifact, and what it remembers."),
    "bench": ("kvedge.runtime.command_bench:bench", "Tokens per second and memory on this device."),
    "eval": ("kvedge.runtime.command_eval:evaluate", "Quality of a quantized artifact against the unquantized one."),
}
_EXTRAS = {"kvedge.export": "export", "kvedge.export.build": "build"}


class _LazyGroup(click.Group):
    """Commands by import path, so that --help loads no model library."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, name = _COMMANDS[cmd_name][0].split(":")
        try:
            return getattr(import_module(module), name)  # type: ignore[no-any-return]
        except ModuleNotFoundError as error:
            raise _explain_missing(module, error) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in _COMMANDS.items()])


def _explain_missing(module: str, error: ModuleNotFoundError) -> Exception:
    extra = _EXTRAS.get(module.rpartition(".")[0])
    missing = error.name or ""
    if extra is None or missing.startswith("kvedge"):
        return error
    what = f"this command needs the package {missing}"
    return KvedgeError(what, expected="it installed", got="not found", fix=f"pip install 'kvedge[{extra}]'")


def _one_line(error: click.ClickException) -> str:
    """What click says of a wrong command line, and where the right one is described."""
    context = getattr(error, "ctx", None)
    where = f"; see {context.command_path} --help" if context else ""
    return " ".join(error.format_message().split()).removesuffix(".") + where


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="kvedge")
def kvedge() -> None:
    """Language models that run for ever in a small, fixed amount of memory."""


def main() -> None:
    """Entry point: bad input is one line and exit code 2, Ctrl-C is 130, being told to stop 143."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # unwinds, so that nothing half-written stays
    try:
        sys.exit(kvedge.main(standalone_mode=False))
    except KvedgeError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(2)
    except MemoryError as error:
        click.echo(f"error: out of memory; {error}; use a smaller --ctx, or export with a smaller --window", err=True)
        sys.exit(1)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(error.exit_code)
    except click.ClickException as error:
        click.echo(f"error: {_one_line(error)}", err=True)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nobody reads any more
        sys.exit(1)
    except OSError as error:
        click.echo(f"error: {error.filename or 'input or output'}; got {error.strerror}", err=True)
        sys.exit(1)
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        sys.exit(130)


if __name__ == "__main__":
    main()
