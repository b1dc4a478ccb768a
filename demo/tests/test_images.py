"""The demo's data set is the same everywhere, and of the size it claims."""

import io
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from images import CLASSES, picture  # noqa: E402


def jpeg(kind, seed):
    file = io.BytesIO()
    picture(kind, seed).save(file, "JPEG", quality=90)
    return file.getvalue()


@pytest.mark.parametrize("kind", CLASSES)
def test_a_seed_gives_one_picture(kind):
    assert jpeg(kind, 7) == jpeg(kind, 7)
    assert jpeg(kind, 7) != jpeg(kind, 8)


def test_files_have_some_tens_of_kilobytes():
    sizes = [len(jpeg(kind, seed)) for seed, kind in enumerate(CLASSES * 4)]
    assert all(20_000 < size < 60_000 for size in sizes), sizes
