"""The installed wheel: claims no name but `barnabas`, and runs beside a project with a `server`."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from testkit.delivery.wheel import ROOT, build, install, run


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a fresh environment that has the wheel; its dependencies are borrowed."""
    return install(wheel, tmp_path_factory.mktemp("environment"))


def test_the_wheel_claims_no_name_but_barnabas(wheel: Path) -> None:
    names = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {name for name in names if not name.endswith(".dist-info")} == {"barnabas"}


def test_the_wheel_holds_every_package_and_its_data(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for package in ("wire", "storage", "replication", "server", "pipeline"):
        assert f"barnabas/_app/{package}/__init__.py" in names
    assert "barnabas/_app/server/config/catalogue.txt" in names


def test_the_wheel_holds_nothing_that_only_developers_need(wheel: Path) -> None:
    for name in zipfile.ZipFile(wheel).namelist():
        assert not {"tests", "compat_tests", "benchmarks", "__pycache__"} & set(name.split("/"))


def test_a_users_type_checker_knows_the_types(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "use.py").write_text(
        "import barnabas\n"
        "with barnabas.Broker() as broker:\n"
        "    right: str = broker.bootstrap_servers\n"
        "    wrong: int = broker.bootstrap_servers\n"
    )
    command = [sys.executable, "-m", "mypy", "--strict", "--python-executable", installed, "use.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "use.py:4: error: Incompatible types" in done.stdout, done.stdout
    assert "Found 1 error" in done.stdout, done.stdout


def test_a_broker_runs_beside_a_project_with_its_own_server_package(
    installed: Path, tmp_path: Path
) -> None:
    (tmp_path / "server").mkdir()
    (tmp_path / "server" / "__init__.py").write_text("WHOSE = 'the user'\n")
    (tmp_path / "wire.py").write_text("raise RuntimeError('the wrong wire was imported')\n")
    (tmp_path / "use.py").write_text(
        "import socket\n"
        "import barnabas\n"
        "import server\n"
        "with barnabas.Broker() as broker:\n"
        "    host, port = broker.bootstrap_servers.split(':')\n"
        "    socket.create_connection((host, int(port)), timeout=5).close()\n"
        "    assert broker.pid is not None and broker.data_dir.is_dir()\n"
        "print(server.WHOSE, barnabas.__file__)\n"
    )
    printed = run(installed, tmp_path / "use.py", cwd=tmp_path)
    assert printed.startswith("the user ")
    assert str(ROOT / "barnabas") not in printed


def test_a_secured_broker_needs_nothing_but_the_wheel(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "use.py").write_text(
        "import barnabas\n"
        "rule = barnabas.Acl('alice', 'read', topic='t')\n"
        "users = {'alice': 'secret'}\n"
        "with barnabas.Broker(security='sasl_ssl', users=users, acls=[rule]) as broker:\n"
        "    print(broker.bootstrap_servers)\n"
    )
    assert run(installed, tmp_path / "use.py", cwd=tmp_path).startswith("127.0.0.1:")


def test_the_installed_command_starts_a_broker(installed: Path, tmp_path: Path) -> None:
    command = installed.parent / "barnabas"
    assert run(command, "version", cwd=tmp_path).startswith("barnabas ")
    process = subprocess.Popen(
        [str(command), "start", "--listen", "127.0.0.1:0"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    process.terminate()
    _out, err = process.communicate(timeout=30)
    assert line.startswith("barnabas ready: 127.0.0.1:"), err
    assert process.returncode == 0
