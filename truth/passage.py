"""A batch on its way from a worker to the trainer writes down who has it, and when.

Pickling and unpickling call these marks in the very threads that must act: the worker's feeder, the reader of its
message, and the worker's resource sharer, which hands over a descriptor for each tensor.
"""

from multiprocessing import reduction, resource_sharer

from log import Did, log


class Milestone:
    """Marks the moment at which it is pickled, and the one at which it is unpickled."""

    def __init__(self, token: int, leaves: Did, arrives: Did):
        self.token, self.leaves, self.arrives = token, leaves, arrives

    def __reduce__(self):
        log().mark(self.leaves, self.token)
        return arrived, (self.token, self.leaves, self.arrives)


def arrived(token: int, leaves: Did, arrives: Did) -> Milestone:
    log().mark(arrives, token)
    return Milestone(token, leaves, arrives)


def between(token: int, batch: tuple) -> tuple:
    """`batch` between two milestones: its parts are pickled and unpickled in order."""
    return Milestone(token, Did.TAKEN, Did.ARRIVED), *batch, Milestone(token, Did.SENT, Did.RECEIVED)


def share_descriptors():
    """Lets this process's resource sharer write down each descriptor that it hands over."""
    send = reduction.send_handle

    def serve(connection, handle, pid):
        log().mark(Did.SERVING)
        send(connection, handle, pid)
        log().mark(Did.SERVED)

    reduction.send_handle = serve


def ask_for_descriptors():
    """Lets the threads of this process that read batches write down how long each waits for a descriptor."""
    detach = resource_sharer.DupFd.detach

    def ask(handle) -> int:
        log().mark(Did.ASKING)
        descriptor = detach(handle)
        log().mark(Did.HANDED)
        return descriptor

    resource_sharer.DupFd.detach = ask
