"""The container image: what is in it, and that it needs nothing else."""

import json
import os
import stat
import subprocess
import sys

import container
from conftest import CONTRIB, skipped

MAKER = CONTRIB / "container/image.py"
# What is in every image, beside the program's own libraries.
ALWAYS = {"/etc/group", "/etc/nsswitch.conf", "/etc/passwd", "/etc/stallscope/stallscope.toml", "/usr/bin/stallscope"}


def files(folder):
    return {"/" + str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}


def test_it_has_the_program_its_libraries_and_nothing_else(program, image, files_of_image):
    listed = {line.split()[-1] for line in image[1].splitlines()[:-1]}
    assert listed == files(files_of_image)
    needed = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    libraries = listed - ALWAYS
    assert ALWAYS < listed and all(library in needed for library in libraries)
    assert sum("=> /" in line for line in needed.splitlines()) < len(libraries) + 1
    assert all(path.stat().st_mode & 0o6022 == 0 for path in files_of_image.rglob("*") if path.is_file())
    modes = {name: stat.S_IMODE((files_of_image / name).stat().st_mode) for name in ("tmp", "run/stallscope", "var/lib/stallscope")}
    assert modes == {"tmp": 0o1777, "run/stallscope": 0o711, "var/lib/stallscope": 0o711}


def test_its_program_runs_where_nothing_else_is(as_root, files_of_image):
    def run(*words):
        return subprocess.run(["/usr/sbin/chroot", files_of_image, *words], capture_output=True, text=True, env={})

    asked = run("/usr/bin/stallscope", "--version")
    assert (asked.returncode, asked.stderr) == (0, "") and asked.stdout.startswith("stallscope 0.")
    checked = run("/usr/bin/stallscope", "collect", "--check", "--config", "/etc/stallscope/stallscope.toml")
    assert (checked.returncode, checked.stderr) == (0, "") and "observe" in checked.stdout


def test_the_same_program_gives_the_same_image(tmp_path):
    """Of any program: to pack this one twice takes seconds."""
    made = []
    for number in (1, 2):
        image = tmp_path / f"{number}.tar"
        command = [sys.executable, MAKER, "--program", "/bin/true", "--tag", "any:1.2", "-o", image]
        subprocess.run(command, check=True, capture_output=True, umask=[0o022, 0o077][number - 1])
        made.append(image.read_bytes())
    assert made[0] == made[1]
    config = container.unpacked(image, tmp_path / "files")
    assert config["config"]["Entrypoint"] == ["/usr/bin/stallscope"] and os.access(tmp_path / "files/usr/bin/stallscope", os.X_OK)
    assert config["config"]["Labels"]["org.opencontainers.image.version"] == "1.2"
    assert json.dumps(config).count(str(tmp_path)) == 0


def test_a_program_without_libraries_takes_none_along(tmp_path):
    source, program = tmp_path / "main.c", tmp_path / "static"
    source.write_text("int main(void) { return 0; }\n")
    if subprocess.run(["cc", "-static", "-o", program, source], capture_output=True).returncode != 0:
        skipped("nothing can be linked statically here")
    image = tmp_path / "static.tar"
    subprocess.run([sys.executable, MAKER, "--program", program, "-o", image], check=True, capture_output=True)
    container.unpacked(image, tmp_path / "files")
    assert files(tmp_path / "files") == ALWAYS


def test_what_is_missing_is_named(tmp_path):
    refused = subprocess.run([sys.executable, MAKER, "--program", tmp_path / "none", "-o", tmp_path / "image"], capture_output=True, text=True)
    assert refused.returncode == 1 and refused.stderr == f"{tmp_path / 'none'} is not there; `make build` makes it\n"
