"""Which checkpoint of a folder is restored: rank 0 looks, and tells the others."""

import typing

from . import reading
from .errors import CheckpointError
from .signals import say


class Found(typing.NamedTuple):
    name: str
    saved_wall_ns: int
    run: typing.Optional[str]
    passed: list


def newest(folder, ranks, begin_anew):
    """The newest that verifies; None where there is none. CheckpointError where there were some and all are bad, unless
    `begin_anew`."""

    def look():
        reader, passed = reading.newest(folder)
        for bad, reason in passed:
            say(f"the checkpoint {bad} was passed over: {reason}")
        if reader is not None:
            return Found(reader.name, reader.saved_wall_ns, reader.run, passed)
        lost = [bad for bad, _ in passed] or reading.set_aside(folder)
        if lost and not begin_anew:
            raise CheckpointError(
                f"{folder} has no good checkpoint any more ({', '.join(lost[:3])} did not verify): see "
                f"`stallscope ckpt ls {folder}`, and to train from the beginning call restore(begin_anew=True)"
            )
        return None

    return _by_first(ranks, look)


def chosen(folder, ranks, which):
    """That one: a step, a name, "latest" or "best". CheckpointError where it is not there or does not verify; it stays
    where it is."""

    def look():
        try:
            reader = reading.named(folder, str(which))
            reader.verify()
        except CheckpointError as error:
            raise CheckpointError(f"{error}; see what can be restored with `stallscope ckpt ls {folder}`") from None
        return Found(reader.name, reader.saved_wall_ns, reader.run, [])

    return _by_first(ranks, look)


def _by_first(ranks, look):
    found = None
    if ranks.rank == 0:
        try:
            found = look()
        except CheckpointError as error:
            found = str(error)
    found = ranks.from_first(found)
    if isinstance(found, str):
        raise CheckpointError(found)
    return found
