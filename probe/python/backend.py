"""maturin's build backend, once the `stallscope` binary lies where the wheel takes it from.

So `pip install ./probe/python` installs the command as build-wheel.sh does, given cargo and clang.
"""

import subprocess
from pathlib import Path

import maturin
from maturin import *  # noqa: F403


def build_wheel(*args, **kwargs):
    subprocess.run([str(Path(__file__).with_name("build-wheel.sh")), "--binary"], check=True)
    return maturin.build_wheel(*args, **kwargs)
