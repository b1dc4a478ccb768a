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

    def __init__(self, sentence):
        # Any text: torch makes it anew with a worker's traceback.
        super().__init__(sentence)


def of(sentence):
    """The error of a sentence from the native module, with what names in it hold made printable."""
    return PackError(printable(sentence))
