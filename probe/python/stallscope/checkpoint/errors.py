class CheckpointError(Exception):
    """Something about a checkpoint that the user can do something about: the message is one sentence that says what."""
