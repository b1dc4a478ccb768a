"""What goes wrong with a pack."""

from stallscope.checkpoint.errors import printable


class PackError(Exception):
    """An error with a pack that the user can act on: damaged bytes, or a snapshot of another state. The message is one sentence.

    Example:
        >>> import stallscope
        >>> try:
        ...     stallscope.PackedDataset("nowhere")
        ... except stallscope.PackError as error:
        ...     print("no pack:", type(error).__name__)
        no pack: PackError
    """


def of(sentence):
    """The error of a sentence from the native module. Names in it are printable afterwards; the error itself takes any text, as torch
    makes it anew with a worker's traceback."""
    return PackError(printable(sentence))
