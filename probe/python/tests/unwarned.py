"""What gives no warning of ours. (Where warnings are errors, they are lines on stderr.)"""

import contextlib
import warnings


@contextlib.contextmanager
def unwarned():
    """Fails behind what is within, where that gave one."""
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        yield
    sentences = [str(one.message) for one in given if issubclass(one.category, RuntimeWarning)]
    assert not sentences
