"""What the image leaves out of the packages: their tests, and nothing that a node uses."""

import re
import subprocess
from pathlib import Path

import pytest

DOCKERFILE = Path(__file__).resolve().parents[2] / "deploy" / "Dockerfile"
KEPT = (
    "torch/__init__.py",
    "torch/bin/torch_shm_manager",
    "torch/lib/libtorch_cpu.so",
    "torch/testing/__init__.py",
    "torch-2.dist-info/licenses/third_party/json/test/LICENSE",
    "sympy/__pycache__/__init__.cpython-311.pyc",
    "gossamer/node/cli.py",
)
LEFT_OUT = (
    "torch/bin/test_api",
    "torch/bin/protoc",
    "torch/test/atest",
    "sympy/core/tests/test_args.py",
    "sympy/core/tests/tests/test_args.py",
    "examples/p2pcalc/tests/test_p2pcalc.py",
)
HEADER = "torch/include/torch/script.h"


def trim_command() -> str:
    """The command of the build stage that leaves files out, as the shell gets it."""
    commands = re.findall(r"^RUN ((?:.*\\\n)*.*)", DOCKERFILE.read_text(), re.MULTILINE)
    (found,) = (command for command in commands if "torch_shm_manager" in command)
    return str(found)


@pytest.mark.parametrize("compiler", ["", "gcc libc6-dev"])
def test_the_image_leaves_out_the_tests_of_packages(tmp_path: Path, compiler: str) -> None:
    packages = tmp_path / "lib" / "python3.11" / "site-packages"
    made = {*KEPT, *LEFT_OUT, HEADER}
    for name in made:
        (packages / name).parent.mkdir(parents=True, exist_ok=True)
        (packages / name).write_text(name)
    assert "/opt/gossamer/" in trim_command()
    command = trim_command().replace("/opt/gossamer/", f"{tmp_path}/")
    subprocess.run(
        ["sh", "-ec", command], check=True, env={"PATH": "/usr/bin:/bin", "COMPILER": compiler}
    )
    left = {str(path.relative_to(packages)) for path in packages.rglob("*") if path.is_file()}
    assert left == {*KEPT, HEADER} if compiler else left == set(KEPT)


def test_one_argument_decides_on_the_compiler_and_its_headers() -> None:
    """A stage gets the value from before the first `FROM` only if it names it without one."""
    before, *stages = re.split(r"^FROM .*$", DOCKERFILE.read_text(), flags=re.MULTILINE)
    assert re.findall(r"^ARG COMPILER.*$", before, re.MULTILINE) == ['ARG COMPILER="gcc libc6-dev"']
    assert len(stages) == 2
    for stage in stages:
        assert re.findall(r"^ARG COMPILER.*$", stage, re.MULTILINE) == ["ARG COMPILER"]
        assert stage.index("ARG COMPILER") < stage.index("$COMPILER")
