"""What the user of a job is to know. None of it ends the job or takes another way through it: neither where the job has warnings raised as
errors, nor where its stderr is closed or on a disk that is full.
"""

import sys
import warnings

from stallscope._hooks.knobs import raised_by_signal


def warn(sentence, level=1):
    """A RuntimeWarning, of the line that `stacklevel=level` of `warnings.warn` would name here. A line on stderr where it would be an error."""
    try:
        warnings.warn(sentence, RuntimeWarning, stacklevel=level + 1)
    except Exception as error:
        if raised_by_signal(error):
            raise
        line(sentence)


def line(sentence):
    """A line on stderr, where there is one that takes it."""
    try:
        if sys.stderr is not None:
            print(sentence, file=sys.stderr, flush=True)
    except Exception as error:
        if raised_by_signal(error):
            raise
