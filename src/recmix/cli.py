"""Run the program ``recmix``: `main` reads the command line and calls a command."""

from __future__ import annotations

import os
import sys

from recmix.commands.parsing import Stopped
from recmix.commands.program import add_commands, app, check_command
from recmix.commands.terminal import err, first_process, plain, sigterm_ends, warnings_as_notes
from recmix.commands.threads import choose_threads, take_threads, use_threads
from recmix.errors import RecmixError, memory_advice

__all__ = ["app", "main"]


def main(arguments: list[str] | None = None) -> None:
    """Run the program ``recmix`` with these command-line arguments.

    If the user can correct an error, the process prints one message and ends with status 2.

    Args:
        arguments: the words of the command line after ``recmix``; by default those of this process.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    try:
        advice = memory_advice("lower --batch-size, --samples, --memory or --restarts")
        with advice, sigterm_ends(), warnings_as_notes():
            words, threads = take_threads(words)
            check_command(words)
            if threads is None and arguments is None:  # in a program of its own
                threads, why = choose_threads(words)
                if why and first_process():
                    err.print(plain(why), highlight=False)
            if threads is not None:
                use_threads(threads)
            add_commands(words)
            app(words, prog_name="recmix")
    except (Stopped, KeyboardInterrupt) as stop:
        err.print(f"[yellow]{plain(stop) or 'stopped; what was saved before is kept'}[/]")
        sys.exit(130)
    except RecmixError as error:
        if debug:
            raise
        err.print(f"[red]error:[/] {plain(error)}")
        sys.exit(2)
    except BrokenPipeError:  # the reader of our output closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


if __name__ == "__main__":
    main()
