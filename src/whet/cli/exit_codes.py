"""Say how a command ends."""

import select
import sys

USAGE_ERROR = 2
INTERRUPTED = 130
NO_READER = 141  # 128 and SIGPIPE, as of any command whose reader has left


def is_unread() -> bool:
    """Return whether the reader of standard output has closed it, as `head` does."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))
