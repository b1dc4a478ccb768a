"""What the kernel shows as text."""

import _io


def of(path):
    """All that is in a file of /proc or a control group. Not by `open`, which a script may have replaced by its own, and which warns of text without an encoding
    where it is asked to."""
    with _io.FileIO(path) as file:
        return file.readall().decode("utf-8", "replace")
