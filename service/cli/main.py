"""The `grpo` command: its options, its sub-commands, and its errors."""

import os
import sys
from collections.abc import Callable
from importlib.metadata import version
from typing import Annotated, NoReturn

import typer
from typer import TyperException

from service.cli.commands import (
    chat,
    diagnose,
    download,
    files,
    jobs,
    logs,
    manifests,
    merge,
    models,
    push,
    rollouts,
    suites,
    watch,
    webhooks,
)
from service.cli.http.client import DEFAULT_URL
from service.cli.manage import editing, listing, sharing, sweep
from service.cli.operate import doctor, integrity, keys, settings, up
from service.cli.prepare import grade, import_trl, probe
from service.cli.terminal.errors import CommandError
from service.cli.terminal.output import json_line, plain
from service.cli.terminal.streams import prepare_streams

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="GRPO fine-tuning of language models as jobs.\n\n"
    "`grpo up` starts the service on this machine; the other commands find its key in $GRPO_HOME/api_key.",
)

SERVICE, WORK, SETUP = "The service", "Jobs", "Datasets, models, keys, webhooks"


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        print(f"grpo-service {version('grpo-service')}")
        raise typer.Exit


@app.callback()
def connection(
    url: Annotated[str, typer.Option(envvar="GRPO_URL", help="URL of the service.")] = DEFAULT_URL,
    api_key: Annotated[
        str | None,
        typer.Option(envvar="GRPO_API_KEY", help="API key (default: the one in $GRPO_HOME/api_key)."),
    ] = None,
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options of every command, which `options.client_of` reads."""


COMMANDS: dict[str, dict[str, Callable[..., None]]] = {
    SERVICE: {
        "up": up.up,
        "serve": settings.serve,
        "worker": settings.worker,
        "migrate": settings.migrate,
        "doctor": doctor.doctor,
        "orphans": integrity.orphans,
    },
    WORK: {
        "grade": grade.grade,
        "suites": suites.suites,
        "probe": probe.probe,
        "submit": jobs.submit,
        "import-trl": import_trl.import_trl,
        "sweep": sweep.sweep,
        "list": listing.list_jobs,
        "status": jobs.status,
        "watch": watch.watch,
        "events": jobs.events,
        "checkpoints": jobs.checkpoints,
        "logs": logs.logs,
        "edit": editing.edit,
        "share": sharing.share,
        "delete": editing.delete,
        "cancel": jobs.cancel,
        "pause": jobs.pause,
        "resume": jobs.resume,
        "rollouts": rollouts.rollouts,
        "rescore": rollouts.rescore,
        "rerun": manifests.rerun,
        "compare": manifests.compare,
        "manifest": manifests.manifest,
        "diagnose": diagnose.diagnose,
        "retry": diagnose.retry,
        "audit": integrity.audit,
        "download": download.download,
        "merge": merge.merge,
        "push": push.push,
        "chat": chat.chat,
    },
}
for panel, commands in COMMANDS.items():
    for name, command in commands.items():
        app.command(name, rich_help_panel=panel)(command)
GROUPS = {"files": files.app, "models": models.app, "keys": keys.app, "webhooks": webhooks.app}
for name, group in GROUPS.items():
    app.add_typer(group, name=name, rich_help_panel=SETUP)


def run() -> None:
    """Entry point. An error is one line on standard error, JSON with `--json`; the exit code is 1.

    Invalid options and arguments exit with 2.
    """
    prepare_streams()
    as_json = "--json" in sys.argv[1:]
    try:
        # standalone, typer draws a box around an invalid option, which programs cannot parse
        code = app(standalone_mode=not as_json)
        sys.exit(code if isinstance(code, int) else 0)
    except CommandError as error:
        _end(error, as_json=as_json)
    except TyperException as error:
        usage = CommandError(error.format_message(), code="usage", hint="--help lists the options")
        usage.exit_code = error.exit_code
        _end(usage, as_json=as_json)
    except typer.Abort:
        aborted = CommandError("aborted; nothing was changed", code="usage", hint="--yes skips the question")
        _end(aborted, as_json=as_json)
    except BrokenPipeError:
        # `grpo events … | head`: keep the interpreter from flushing into the closed pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except UnicodeEncodeError as error:  # an argument or the name of a file has bytes of another encoding
        text = error.object[max(0, error.start - 20) : error.end + 20]
        _end(CommandError(f"not valid UTF-8: {text}"), as_json=as_json)
    except OSError as error:  # a full disk, or an output file in a folder that does not exist
        place = f"{error.filename}: " if error.filename else ""
        _end(CommandError(place + (error.strerror or str(error))), as_json=as_json)


def _end(error: CommandError, *, as_json: bool) -> NoReturn:
    line = json_line(error.document()) if as_json else f"{error.prefix}{plain(error.line())}"
    print(line, file=sys.stderr)
    sys.exit(error.exit_code)
