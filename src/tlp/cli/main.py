"""The `tlp` command."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator

import typer

from tlp import __version__
from tlp.cli import doctor, import_, inspect, judge, report, run, split, tasks, train, tune
from tlp.errors import TlpError

INTERRUPTED = 130

app = typer.Typer(
    name="tlp",
    help="Tune networks on TVM's MetaSchedule by scoring schedules before they are built.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"tlp {__version__}")
        raise typer.Exit


@app.callback(
    epilog="Example: tlp tune mobilenet_v2 --minutes 10 --work-dir runs/mobilenet_v2",
)
def _root(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Show the version and exit."
    ),
) -> None:
    pass


app.command("tune", epilog=tune.EXAMPLES)(tune.tune)
app.command("tasks", epilog=tasks.EXAMPLES)(tasks.tasks)
app.command("run", epilog=run.EXAMPLES)(run.run)
app.command("report", epilog=report.EXAMPLES)(report.report)
app.command("import", epilog=import_.EXAMPLES)(import_.import_)
app.command("inspect", epilog=inspect.EXAMPLES)(inspect.inspect)
app.command("split", epilog=split.EXAMPLES)(split.split)
app.command("train", epilog=train.EXAMPLES)(train.train)
app.command("judge", epilog=judge.EXAMPLES)(judge.judge)
app.command("doctor", epilog=doctor.EXAMPLES)(doctor.doctor)


@contextlib.contextmanager
def _errors_as_exit_codes() -> Iterator[None]:
    """Turn user errors into one line on standard error, or JSON where `--json` was given."""
    try:
        yield
    except TlpError as error:
        if "--json" in sys.argv:
            print(json.dumps({"error": type(error).__name__, "message": str(error)}))
        print(f"tlp: error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        sys.exit(1)


def main() -> None:
    """Entry point of the console script."""
    with _errors_as_exit_codes():
        # Outside standalone mode Ctrl-C stays a KeyboardInterrupt, and usage errors are ours.
        try:
            code = app(standalone_mode=False)
        except typer.Exit as stop:
            code = stop.exit_code
        except KeyboardInterrupt:
            code = INTERRUPTED
        except Exception as error:
            show = getattr(error, "show", None)
            if show is None:
                raise
            show()
            code = getattr(error, "exit_code", 2)
        if code == INTERRUPTED:
            print("tlp: interrupted; the same command goes on from here", file=sys.stderr)
        sys.exit(code if isinstance(code, int) else 0)
