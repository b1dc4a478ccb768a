class CheckpointError(Exception):
    """Something about a checkpoint that the user can do something about: the message is one sentence that says what."""

    def __init__(self, sentence):
        super().__init__(printable(sentence))


def printable(sentence):
    """`sentence` as a terminal shows it, whatever the names in it hold: a checkpoint may come from anywhere."""
    sentence = str(sentence)
    if sentence.isprintable():
        return sentence
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in sentence)
