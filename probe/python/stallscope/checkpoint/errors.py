class CheckpointError(Exception):
    """An error with a checkpoint that the user can act on. The message is one sentence.

    Example:
        >>> import stallscope, torch
        >>> with stallscope.Checkpointer("empty", model=torch.nn.Linear(2, 1)) as checkpointer:
        ...     try:
        ...         checkpointer.restore("best")
        ...     except stallscope.CheckpointError as error:
        ...         print("no checkpoint:", type(error).__name__)
        no checkpoint: CheckpointError
    """

    def __init__(self, sentence):
        super().__init__(printable(sentence))


def printable(sentence):
    """`sentence` as a terminal shows it, whatever the names in it hold: a checkpoint may come from anywhere."""
    sentence = str(sentence)
    if sentence.isprintable():
        return sentence
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in sentence)
