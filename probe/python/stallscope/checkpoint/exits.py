"""The interpreter's end closes a Checkpointer that nothing else has closed."""

import atexit
import weakref


def close_at_exit(checkpointer):
    reference = weakref.ref(checkpointer)

    def close():
        alive = reference()
        if alive is not None:
            alive.close()

    checkpointer._at_exit = close
    atexit.register(close)
