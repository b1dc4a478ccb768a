"""Keys that come from elsewhere. Python tells those of one hash apart by comparing each with the others, and whole numbers of one hash are
easily found: 100,000 such keys of a dict take minutes, a million a day."""

import collections

# Of keys that nobody has chosen for that, two or three.
_MOST_ALIKE = 64


def distinguishable(keys):
    """`keys` as a list. ValueError where too many of them have one hash."""
    keys = list(keys)
    if len(keys) > _MOST_ALIKE:
        _, most = collections.Counter(map(hash, keys)).most_common(1)[0]
        if most > _MOST_ALIKE:
            raise ValueError(f"{most} of its keys have one hash")
    return keys
