"""The command line. Exit codes: 0 done, 1 the run failed, 2 the user's input, 130 stopped.

Nothing here or in `flags` imports a package that takes long to load: `--help` and `--version` answer at once.
"""

import errno
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module

from dualnet.cli.terminal import fail, handled_signals, prepare_streams, show_warning
from dualnet.runs.stop import StopRequested

# Errors of a path that can never be used, such as a folder where a file is asked for, or a file as a parent folder.
PATH_ERRORS = (errno.ENAMETOOLONG, errno.EEXIST, errno.ENOTDIR, errno.EISDIR)


def main(argv: Sequence[str] | None = None) -> int:
    with handled_signals() as interruptible:
        try:
            prepare_streams()
            warnings.showwarning = show_warning
            return perform(sys.argv[1:] if argv is None else list(argv), interruptible)
        except ValueError as error:
            return fail(str(error), 2)
        except BrokenPipeError:  # the reader of a pipe has enough, as `head` does
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1
        except OSError as error:
            what = f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror or error)
            if error.errno in PATH_ERRORS:
                return fail(f"{what}; give another path", 2)
            return fail(f"{what}; all saved files are complete: fix this and try again", 1)
        except StopRequested as stopped:
            return fail(str(stopped), 130)
        except KeyboardInterrupt:
            exec("")  # else `python -m` ends by SIGINT if the interrupt came within an exec, as dataclasses have it
            return fail("stopped; the same command continues from the last checkpoint, if there is one", 130)


def perform(words: list[str], interruptible: Callable[[], None]) -> int:
    from dualnet.cli import flags

    try:
        arguments, options = flags.parse(words)
        # A module `list` would become an attribute of this one, and hide Python's own.
        verb = import_module(f"dualnet.cli.{'listing' if arguments.verb == 'list' else arguments.verb}")
        interruptible()
        code = verb.main(arguments, options)
    except SystemExit as done:  # --help and --version
        code = int(done.code or 0)
    sys.stdout.flush()
    return code
