"""Who may read and write what the daemon makes, under any umask; and the Unix socket of the unit."""

from __future__ import annotations

import errno
import grp
import os
import re
import resource
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import skip_or_fail
from running import Daemon
from waiting import until

from graphtide.daemon.config.addresses import default_socket_path
from graphtide.daemon.config.load import from_tables
from graphtide.daemon.errors import ConfigError
from graphtide.daemon.records.spool_format import SpoolWriter
from graphtide.daemon.serve.listening import bind_socket
from graphtide.daemon.tools import doctor
from graphtide.gpma import runtime

ROOT = Path(__file__).resolve().parents[1]
SYSTEMD = ROOT / "ops" / "systemd"


def mode(path: Path | str) -> int:
    return stat.S_IMODE(os.stat(path).st_mode)


@pytest.fixture(params=[0, 0o022, 0o077])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


# -- files ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("umask", [0], indirect=True)
def test_what_the_daemon_makes_is_its_users_alone(tmp_path: Path, umask: int) -> None:
    made = tmp_path / "made"
    settings = {
        "source": {"path": made / "spool"},
        "dead_letters": {"path": made / "letters" / "bad"},
        "checkpoint": {"path": made / "state" / "checkpoints"},
        "program": [],
    }
    with Daemon(tmp_path / "daemon", settings) as daemon:
        daemon.start()
        bad = made / "spool" / "bad.json"
        until(bad.parent.is_dir)
        bad.write_text('{"src": 1}\n')
        bad.chmod(0o640)
        with daemon.client() as client:
            client.wait({bad.name: bad.stat().st_size}, timeout_ms=60_000)
        assert mode(daemon.address.removeprefix("unix:")) == 0o660
        assert daemon.stop() == 0
    found = {path: mode(path) for path in [made, *made.rglob("*")] if path != bad}
    names = {path.name for path in found}
    assert {"lock", "incarnation"} <= names and any(name.endswith(".msgpack") for name in names), names
    assert any(name.endswith(".npy") or "manifest" in name for name in names), names
    wrong = {str(path): oct(bits) for path, bits in found.items() if bits != (0o700 if path.is_dir() else 0o600)}
    assert not wrong


def test_a_spool_file_may_be_read_by_those_who_may_read_its_folder(tmp_path: Path, umask: int) -> None:
    with SpoolWriter(tmp_path / "a" / "spool", name="x") as writer:
        writer.append(b"record")
    assert [mode(tmp_path / "a" / name) for name in ("", "spool", "spool/x.msgpack")] == [0o700, 0o700, 0o600]
    for bits, expected in ((0o750, 0o640), (0o2770, 0o640), (0o755, 0o644), (0o777, 0o644), (0o700, 0o600)):
        folder = tmp_path / oct(bits)
        folder.mkdir()
        folder.chmod(bits)
        for _ in range(2):  # also where it goes on
            with SpoolWriter(folder, name="x") as writer:
                writer.append(b"record")
        assert mode(folder / "x.msgpack") == expected


def test_kernels_of_a_folder_that_others_may_have_filled_are_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "is_writable", lambda folder: False)  # neither a home nor /var/cache
    monkeypatch.setattr(runtime.tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    usual = tmp_path / f"graphtide-numba-{os.getuid()}"
    assert runtime.cache_directory() == usual == runtime.cache_directory()
    assert mode(usual) == 0o700
    usual.chmod(0o777)
    other = runtime.cache_directory()
    assert other != usual and mode(other) == 0o700
    usual.rmdir()
    usual.symlink_to(tmp_path)
    assert runtime.cache_directory() not in (usual, other)


def test_kernels_stay_in_their_folder_where_no_further_file_can_be_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else they would be compiled anew, into a folder that no other process looks into."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with open(os.devnull) as newest:
        resource.setrlimit(resource.RLIMIT_NOFILE, (newest.fileno(), limits[1]))
        try:
            assert runtime.cache_directory() == tmp_path
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_the_doctor_names_folders_that_every_user_may_write(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    config = from_tables(
        {
            "source": {"path": str(tmp_path)},
            "server": {"listen": [f"unix:{tmp_path}/s"]},
            "metrics": {"listen": "off"},
        }
    )
    findings = {finding.check: finding for finding in [*doctor._directories(config), *doctor._addresses(config)]}
    assert findings["source.path"].status == "warn" and "chmod o-w" in findings["source.path"].hint
    assert findings["listen"].status == "warn" and "PrivateTmp" in findings["listen"].hint
    tmp_path.chmod(0o700)
    findings = {finding.check: finding for finding in [*doctor._directories(config), *doctor._addresses(config)]}
    assert findings["source.path"].status == findings["listen"].status == "ok"


def test_the_doctor_says_where_the_working_directory_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    findings = {finding.check: finding for finding in doctor.examine(from_tables({"metrics": {"listen": "off"}}))}
    assert findings["working directory"].found == "it cannot be used: No such file or directory"
    assert findings["checkpoint.path"].found == "checkpoints cannot be written: No such file or directory"


# -- the socket -------------------------------------------------------------------------------------------


def test_the_socket_is_the_named_groups(tmp_path: Path, umask: int) -> None:
    groups = [group for group in grp.getgrall() if os.geteuid() == 0 or group.gr_gid in os.getgroups()]
    group = next((group for group in groups if group.gr_gid != os.getegid()), groups[0])
    listener, _ = bind_socket(f"unix:{tmp_path}/s", beyond_loopback=False, socket_group=group.gr_name)
    with listener:
        assert mode(tmp_path / "s") == 0o660
        assert os.stat(tmp_path / "s").st_gid == group.gr_gid


def test_a_group_that_the_socket_cannot_be_given_to_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = f"unix:{tmp_path}/s"
    with pytest.raises(ConfigError, match=r"server\.socket_group = 'no-such': there is no"):
        bind_socket(address, beyond_loopback=False, socket_group="no-such")

    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "chown", refuse)
    with pytest.raises(ConfigError, match=r"server.socket_group = '\w+': user \d+ is not in that group"):
        bind_socket(address, beyond_loopback=False, socket_group=grp.getgrall()[0].gr_name)
    assert not [*tmp_path.iterdir()]  # nobody takes it for that of a daemon


@pytest.mark.parametrize("group", [None, grp.getgrgid(os.getegid()).gr_name])
def test_a_mode_that_the_socket_cannot_be_given_is_no_matter_of_its_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: str | None
) -> None:
    address = f"unix:{tmp_path}/s"

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "chmod", refuse)
    with pytest.raises(ConfigError, match=rf"cannot listen on {address}: Operation not permitted"):
        bind_socket(address, beyond_loopback=False, socket_group=group)
    assert not [*tmp_path.iterdir()]


# -- the unit ---------------------------------------------------------------------------------------------


def unit() -> dict[str, list[str]]:
    """The settings of the unit: some come several times."""
    text = (SYSTEMD / "graphtide.service").read_text("utf-8")
    found: dict[str, list[str]] = {}
    for name, value in re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE):
        found.setdefault(name, []).append(value)
    return found


def test_the_units_socket_can_be_reached_by_the_group_that_its_files_name() -> None:
    settings = unit()
    (group,) = settings["SupplementaryGroups"]
    assert f"GRAPHTIDE_SERVER__SOCKET_GROUP={group}" in settings["Environment"]
    assert re.search(rf"^g {group} -$", (SYSTEMD / "graphtide.sysusers").read_text(), re.MULTILINE)
    (runtime_folder,) = settings["RuntimeDirectory"]
    path = default_socket_path({"RUNTIME_DIRECTORY": f"/run/{runtime_folder}"})
    assert path == "/run/graphtide/graphtide.sock"
    assert settings["UMask"] == ["0077"] and settings["PrivateTmp"] == ["yes"]
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        # What a daemon under the unit makes in /tmp nobody else sees.
        assert "unix:/tmp" not in page.read_text("utf-8"), page


def test_the_unit_is_one(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        skip_or_fail("systemd-analyze not found (Debian: systemd)")
    text = (SYSTEMD / "graphtide.service").read_text("utf-8")
    (tmp_path / "graphtide.service").write_text(text.replace("/opt/graphtide/bin/graphtide", "/bin/true"))
    shown = subprocess.run(
        ["systemd-analyze", "verify", str(tmp_path / "graphtide.service")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "graphtide.service" not in shown.stderr, shown.stderr
