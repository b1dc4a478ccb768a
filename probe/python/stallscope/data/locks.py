"""A lock for what the threads of one process do with one object."""

import os
import threading


class ForkSafeLock:
    """Taken again by the thread that has it. A forked child and a copy have one of their own, which nobody holds."""

    def __init__(self):
        self.pid = os.getpid()
        self.lock = threading.RLock()

    def __enter__(self):
        if self.pid != os.getpid():
            self.__init__()
        self.lock.acquire()

    def __exit__(self, *exception):
        self.lock.release()

    def __reduce__(self):
        return ForkSafeLock, ()
