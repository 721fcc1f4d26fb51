"""Imported by the server of a LocalPool, which has the signals of a stop blocked: what it forks shall hear them."""

import os
import signal

os.register_at_fork(after_in_child=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM)))
