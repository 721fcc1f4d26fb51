"""The command line. Exit codes: 0 success, 1 failure, 2 invalid input, 130 interrupted.

Neither this module nor `flags` imports slow packages, so that `--help` and `--version` respond at once.
"""

import errno
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module

from dualnet.cli.terminal import fail, handled_signals, prepare_streams, show_warning
from dualnet.experiments.stop import StopRequested

# Errors that only another path can fix, such as a folder in place of a file, or a file as a parent folder.
PATH_ERRORS = (errno.ENAMETOOLONG, errno.EEXIST, errno.ENOTDIR, errno.EISDIR)
CONTINUED = {"run", "learn", "search", "reproduce", "teach"}  # commands whose results so far are kept


def main(argv: Sequence[str] | None = None) -> int:
    words = sys.argv[1:] if argv is None else [*argv]
    with handled_signals() as interruptible:
        try:
            prepare_streams()
            warnings.showwarning = show_warning
            return run_command(words, interruptible)
        except ValueError as error:
            return fail(str(error), 2)
        except BrokenPipeError:  # the reader of a pipe has closed it, as `head` does
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1
        except OSError as error:
            reason = f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror or error)
            if error.errno in PATH_ERRORS:
                return fail(f"{reason}; give another path", 2)
            return fail(f"{reason}; saved files are intact: fix this and try again", 1)
        except StopRequested as stopped:
            return fail(str(stopped), 130)
        except KeyboardInterrupt:
            saved = "; the same command continues from what was saved" if CONTINUED.intersection(words[:1]) else ""
            return fail(f"stopped{saved}", 130)


def run_command(argv: list[str], interruptible: Callable[[], None]) -> int:
    from dualnet.cli import flags

    try:
        arguments, options = flags.parse(argv)
        command = import_module(f"dualnet.cli.{arguments.command}")
        interruptible()
        code = command.main(arguments, options) or 0  # None: it fails only by an exception
    except SystemExit as done:  # --help and --version
        code = int(done.code or 0)
    sys.stdout.flush()
    return code
