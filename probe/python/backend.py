"""maturin's build backend, which also puts the `stallscope` binary where the wheel takes it from.

So `pip install ./probe/python` installs the command as build-wheel.sh does, given cargo, a C compiler, CMake and NASM.
"""

import subprocess
from pathlib import Path

import maturin
from maturin import *  # noqa: F403

HERE = Path(__file__).parent


def prepare_metadata_for_build_wheel(*args, **kwargs):
    # pip asks for this first, and maturin wants the folder of `data` to be there for whatever it is asked.
    (HERE / "wheel-data").mkdir(exist_ok=True)
    return maturin.prepare_metadata_for_build_wheel(*args, **kwargs)


def build_wheel(*args, **kwargs):
    subprocess.run([HERE / "build-wheel.sh", "--binary"], check=True)
    return maturin.build_wheel(*args, **kwargs)


def build_editable(*args, **kwargs):
    subprocess.run([HERE / "build-wheel.sh", "--binary"], check=True)
    return maturin.build_editable(*args, **kwargs)


prepare_metadata_for_build_editable = prepare_metadata_for_build_wheel
