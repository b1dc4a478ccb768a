"""The bytes of samples in a worker where fetchers may have read them before."""

import time

from stallscope.data.cache.reader import _WAIT_MS, _WAITS, Kept


class KeptAhead(Kept):
    """Looks at the staging space, too, once there are fetchers. What it finds there it offers to the data set's own
    space as if it had read it: so what is kept is the same with fetchers and without."""

    def __init__(self, space, tally, policy, staging, shared):
        super().__init__(space, tally, policy)
        self.policy = policy
        self.staging = staging
        self.shared = shared

    def __reduce__(self):
        # What is shared goes to forked processes alone.
        return Kept, (self.space, self.tally, self.policy)

    def of(self, use, tag, read, made=None):
        number = use[0]
        if not self.shared.begun:
            self.shared.used(number)
            return super().of(use, tag, read, made)
        data = self.space.get(number, tag)
        if data is not None:
            self.shared.used(number)
            return self.hit(use, data)
        data = self.staging.get(number, tag)
        if data is not None:
            return self._staged(use, tag, data, made)
        for _ in range(_WAITS):
            began_s = time.monotonic()
            if self.staging.claim(number, _WAIT_MS, tag):
                return self._claimed(use, tag, read, made)
            waited_s = time.monotonic() - began_s
            data = self.staging.get(number, tag)
            if data is not None:
                self.tally.late += not use[3]
                return self._staged(use, tag, data, made)
            # A fetcher may read a sample for long, and no pool is waited for that does not answer.
            if waited_s < _WAIT_MS / 2000:
                break
        self.shared.used(number)
        return _made(self._read(read), made)

    def _staged(self, use, tag, data, made):
        self.shared.used(use[0])
        self.tally.pool_bytes += len(data)
        if use[3]:
            self.tally.substitutions += 1
        else:
            self.tally.hits += 1
            self.tally.prefetched += 1
        return self._offered(use, tag, _made(data, made))

    def _offered(self, use, tag, data):
        """As after any miss: the policy hears of this use, and says whether the sample is kept."""
        if self.tally.sizes is not None:
            self.tally.sizes.seen(use[0], len(data))
        self.space.fill(use[0], tag, data, use[1], use[2])
        return data

    def _claimed(self, use, tag, read, made):
        """Nobody else reads it until the claim is given up. Who gets it next sees by then that the use is over."""
        number = use[0]
        self.shared.used(number)
        try:
            data = self.space.get(number, tag)
            if data is not None:
                # Another worker was faster, and this one may have waited for it.
                return self.hit(use, data)
            return self._offered(use, tag, _made(self._read(read), made))
        finally:
            self.staging.give_up(number)


def _made(data, made):
    return data if made is None else made(data)
