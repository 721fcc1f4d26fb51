"""Preloaded by the fork server of a LocalPool: unblocks SIGINT and SIGTERM, blocked in the server, in its children."""

import os
import signal

os.register_at_fork(after_in_child=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM)))
