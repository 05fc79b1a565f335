"""Settings: layers, origins, messages, secrets, and the page that documents them."""

from __future__ import annotations

import os
import pwd
import tomllib
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling import examples

from graphtide.daemon.client.addresses import SOCKET_HERE, TcpAddress, UnixAddress, is_loopback
from graphtide.daemon.config import show as config_show
from graphtide.daemon.config.addresses import default_socket_path, parse_tcp
from graphtide.daemon.config.load import MASK, dotted, from_tables, load, parse_text
from graphtide.daemon.config.secrets import is_secret
from graphtide.daemon.config.sections import programs as declared_programs
from graphtide.daemon.config.sections.section import Section
from graphtide.daemon.config.settings import Config
from graphtide.daemon.errors import ConfigError
from graphtide.daemon.serve.listening import bind_socket, others_may_write
from graphtide.daemon.tools import doctor

ROOT = Path(__file__).parent.parent


def problems(error: ConfigError) -> dict[str, dict[str, str]]:
    return {problem["key"]: problem for problem in error.detail["problems"]}


def refused(tables: dict[str, Any]) -> dict[str, dict[str, str]]:
    with pytest.raises(ConfigError) as caught:
        from_tables(tables)
    return problems(caught.value)


# -- defaults and layers ------------------------------------------------------------------------------------


def test_no_settings_at_all_is_a_valid_configuration() -> None:
    config = load(environ={}).config
    assert (config.source.kind, config.source.path) == ("spool", Path("spool"))
    assert [program.id for program in config.program] == ["components", "pagerank"]
    assert config.server.listen[1] == "tcp://127.0.0.1:7420"
    assert config.metrics.address() == TcpAddress("127.0.0.1", 9420)
    assert config.graph.weights == "non-negative" and config.graph.directed


def test_defaults_built_directly_equal_those_that_are_loaded() -> None:
    assert Config() == load(environ={}).config


def test_environment_overrides_file_and_flags_override_both(tmp_path: Path) -> None:
    file = tmp_path / "graphtide.toml"
    file.write_text('[epoch]\nupdates_max = 10\nqueue_updates_max = 20\nlinger_ms = 5\n[log]\nlevel = "error"\n')
    loaded = load(
        file,
        environ={"GRAPHTIDE_EPOCH__QUEUE_UPDATES_MAX": "30", "GRAPHTIDE_EPOCH__LINGER_MS": "6", "HOME": "/"},
        flags=[("--set", "epoch.linger_ms", "7")],
    )
    epoch = loaded.config.epoch
    assert (epoch.updates_max, epoch.queue_updates_max, epoch.linger_ms) == (10, 30, 7.0)
    assert loaded.origins["epoch.updates_max"] == f"file {file}"
    assert loaded.origins["epoch.queue_updates_max"] == "environment GRAPHTIDE_EPOCH__QUEUE_UPDATES_MAX"
    assert loaded.origins["epoch.linger_ms"] == "flag --set"
    assert loaded.config.log.level == "error"


def test_threads_are_as_many_as_cores_are_granted_unless_a_number_is_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(declared_programs, "usable_cores", lambda: 3)
    assert Config().compute.thread_count() == 3
    assert Config().storage.thread_count() is None
    config = from_tables({"compute": {"threads": 8}, "storage": {"threads": 5}})
    assert (config.compute.thread_count(), config.storage.thread_count()) == (8, 5)
    assert set(refused({"storage": {"threads": 0}})) == {"storage.threads"}


def test_lists_and_tables_come_as_json_toml_or_with_commas() -> None:
    loaded = load(
        environ={
            "GRAPHTIDE_PROGRAM": '[{"name": "bfs", "source": 1}]',
            "GRAPHTIDE_SOURCE__KIND": "kafka",
            "GRAPHTIDE_SOURCE__TOPICS": "a, b",
            "GRAPHTIDE_SOURCE__BOOTSTRAP_SERVERS": '["one:9092", "two:9092"]',
        },
        flags=[("--set", "source.start", "{a = {0 = 5}}")],
    )
    source = loaded.config.source
    assert source.topics == ("a", "b") and source.bootstrap_servers == ("one:9092", "two:9092")
    assert source.start == {"a": {0: 5}}
    assert loaded.config.program[0].parameters == {"source": 1}


def test_variables_that_orchestrators_set_are_let_be() -> None:
    environ = {
        "GRAPHTIDE_SERVICE_HOST": "10.0.0.1",
        "GRAPHTIDE_PORT": "tcp://10.0.0.1:7420",
        "GRAPHTIDE_CONFIG": "x",
    }
    assert load(environ=environ).config == load(environ={}).config


def test_a_variable_that_lacks_an_underscore_is_refused() -> None:
    """It would set nothing, and nobody would know."""
    environ = {
        "GRAPHTIDE_SOURCE_KIND": "kafka",
        "GRAPHTIDE_SERVER_ADMIN_TOKEN": "secret",
        "GRAPHTIDE_SOURCE_CLIENT": '{"sasl_plain_password": "secret"}',
    }
    with pytest.raises(ConfigError) as caught:
        load(environ=environ)
    found = problems(caught.value)
    assert "GRAPHTIDE_SOURCE__KIND" in found["source.kind"]["allowed"]
    assert "secret" not in str(caught.value) and "GRAPHTIDE_SERVER__ADMIN_TOKEN" in caught.value.message


def test_a_given_table_replaces_the_default_programs_only_when_given() -> None:
    assert from_tables({"program": []}).program == ()
    assert len(from_tables({}).program) == 2


# -- messages -----------------------------------------------------------------------------------------------


def test_every_problem_is_reported_with_key_value_allowed_and_origin(tmp_path: Path) -> None:
    file = tmp_path / "bad.toml"
    file.write_text(
        '[source]\ntopcs = ["a"]\nstart = "yesterday"\n[sever]\nx = 1\n[epoch]\nupdates_max = -5\n'
        '[server.limits]\nframe_bytes = 3\n[graph]\nvertex_ids = "uuid"\n[[program]]\nid = 3\n'
    )
    with pytest.raises(ConfigError) as caught:
        load(file, environ={"GRAPHTIDE_LOG__LEVEL": "loud"}, flags=[("--set", "compute.threads", "0")])
    found = problems(caught.value)
    assert found["source.topcs"]["allowed"] == "unknown key; did you mean source.topics?"
    assert "2026-01-31T12:00:00Z" in found["source.start"]["allowed"]
    assert found["sever"]["allowed"] == "unknown section; did you mean server?"
    assert found["epoch.updates_max"]["value"] == "-5"
    assert "did you mean server.limits.frame_bytes_max?" in found["server.limits.frame_bytes"]["allowed"]
    assert found["graph.vertex_ids"]["allowed"] == "must be 'int' or 'string'"
    assert found["program[0].name"]["allowed"] == "must be given"
    assert found["log.level"]["origin"] == "environment GRAPHTIDE_LOG__LEVEL"
    assert found["compute.threads"]["origin"] == "flag --set"
    assert found["epoch.updates_max"]["origin"] == f"file {file}"
    for problem in found.values():
        assert f"{problem['key']}" in caught.value.message and problem["allowed"] in caught.value.message


TWICE = ("source.client.ssl_password_file", "together with client.ssl_password")


@pytest.mark.parametrize(
    ("tables", "key", "words"),
    [
        ({"source": {"kind": "kafka", "topics": ["a"]}}, "source.bootstrap_servers", "at least one broker"),
        ({"source": {"kind": "kafka", "bootstrap_servers": ["h:1"]}}, "source.topics", "at least one topic"),
        ({"source": {"bootstrap_servers": ["host"]}}, "source.bootstrap_servers", "HOST:PORT"),
        ({"results": {"bootstrap_servers": ["h:1", "host"]}}, "results.bootstrap_servers", "('host' is not)"),
        ({"source": {"topics": ["a", "a"]}}, "source.topics", "each topic once"),
        ({"source": {"csv_columns": ["src", "weight"]}}, "source.csv_columns", "src and dst"),
        ({"source": {"columns": {"source": "a"}}}, "source.columns.source", "unknown key"),
        ({"source": {"columns": {"src": "a..b"}}}, "source.columns.src", "dots between"),
        ({"source": {"columns": {"src": ""}}}, "source.columns.src", "must be a name"),
        ({"source": {"columns": {"src": []}}}, "source.columns.src", "must be a name"),
        ({"source": {"columns": {"src": ["a", ""]}}}, "source.columns.src", "a list of names"),
        ({"source": {"columns": {"src": 1}}}, "source.columns.src", "must be a valid string or a list"),
        ({"source": {"columns": {"src": ["a", "b"], "dst": "a.b"}}}, "source.columns.dst", "source.columns.src"),
        ({"source": {"columns": {"src": ["a.b"], "dst": "a.b"}}}, "source.columns.dst", "source.columns.src"),
        ({"source": {"columns": {"src": "a", "dst": "a"}}}, "source.columns.dst", "source.columns.src"),
        ({"source": {"columns": {"op_values": {"insert": ["c"]}}}}, "source.columns.op_values", "columns.op"),
        (
            {"source": {"columns": {"op": "o", "op_values": {"insert": ["c", "u"], "delete": ["u"]}}}},
            "source.columns.op_values",
            "once (u)",
        ),
        (
            {"source": {"columns": {"op": "o", "op_values": {"upsert": ["c"]}}}},
            "source.columns.op_values.upsert",
            "insert",
        ),
        ({"source": {"client": {"group_id": "x"}}}, "source.client.group_id", "unknown key"),
        ({"source": {"client": {"sasl_mechansm": "x"}}}, "source.client.sasl_mechansm", "sasl_mechanism?"),
        ({"source": {"client": {"ssl_password": "x", "ssl_password_file": "y"}}}, *TWICE),
        ({"source": {"client": {"request_timeout_ms": "soon"}}}, "source.client.request_timeout_ms", "from 1"),
        (
            {"source": {"client": {"request_timeout_ms_file": "x"}}},
            "source.client.request_timeout_ms_file",
            "a number",
        ),
        (
            {"source": {"client": {"ssl_check_hostname_file": "x"}}},
            "source.client.ssl_check_hostname_file",
            "true or",
        ),
        ({"source": {"client": {"request_timeout_ms": True}}}, "source.client.request_timeout_ms", "from 1"),
        ({"source": {"client": {"receive_buffer_bytes": -1}}}, "source.client.receive_buffer_bytes", "from 1"),
        (
            {"source": {"client": {"security_protocol": "TLS"}}},
            "source.client.security_protocol",
            "PLAINTEXT, SSL,",
        ),
        ({"source": {"client": {"sasl_mechanism": "SCRAM"}}}, "source.client.sasl_mechanism", "SCRAM-SHA-512"),
        (
            {"source": {"client": {"sasl_mechanism": "OAUTHBEARER"}}},
            "source.client.sasl_mechanism",
            "GSSAPI, PLAIN",
        ),
        (
            {"source": {"client": {"ssl_check_hostname": "no"}}},
            "source.client.ssl_check_hostname",
            "true or false",
        ),
        ({"source": {"client": {"api_version": "new"}}}, "source.client.api_version", "version of the broker"),
        ({"source": {"client": {"ssl_cafile": 7}}}, "source.client.ssl_cafile", "must be text"),
        ({"source": {"client": {"ssl_context": "x"}}}, "source.client.ssl_context", "unknown key"),
        ({"source": {"topics": ["a b"]}}, "source.topics", "names of topics"),
        ({"source": {"topics": [".."]}}, "source.topics", "names of topics"),
        ({"results": {"topic": ".."}}, "results.topic", "name of a topic"),
        ({"dead_letters": {"topic": "a b"}}, "dead_letters.topic", "name of a topic"),
        ({"source": {"start": {"a": {"0": -1}}}}, "source.start", "topic -> partition -> offset"),
        ({"source": {"start": "2026-01-31"}}, "source.start", "must not be a time"),
        (
            {
                "source": {
                    "kind": "kafka",
                    "bootstrap_servers": ["h:1"],
                    "topics": ["edges"],
                    "start": {"edgse": {"0": 1}},
                }
            },
            "source.start",
            "must name none but source.topics, and not edgse",
        ),
        ({"source": {"start": {"a": {"0": 1}}}}, "source.start", "file -> byte"),
        ({"source": {"name": "a b"}}, "source.name", "must match pattern"),
        ({"server": {"limits": {"timeout_ms_max": 5}}}, "server.limits.timeout_ms_default", "at most"),
        ({"server": {"limits": {"frame_bytes_max": 1 << 30}}}, "server.limits.memory_bytes_max", "at least"),
        ({"epoch": {"queue_updates_max": 1}}, "epoch.queue_updates_max", "at least epoch.updates_max"),
        ({"server": {"token": "short"}}, "server.token", "must have at least 8 characters, not 5"),
        ({"source": {"path": 7}}, "source.path", "must be a path, as text"),
        ({"server": {"listen": []}}, "server.listen", "at least one"),
        ({"server": {"listen": ["http://x"]}}, "server.listen[0]", "unix:PATH or tcp://HOST:PORT"),
        ({"server": {"listen": ["tcp://0.0.0.0:7420"]}}, "server.listen", "beyond loopback"),
        ({"server": {"listen": ["tcp://graph.example:7420"]}}, "server.listen", "server.insecure = true"),
        ({"server": {"token": "12345678", "token_file": "x"}}, "server.token_file", "together with server.token"),
        ({"server": {"tls": {"certificate": "c.pem"}}}, "server.tls.key", "belong together"),
        ({"metrics": {"listen": "9420"}}, "metrics.listen", "HOST:PORT"),
        ({"metrics": {"listen": ""}}, "metrics.listen", "`off`"),
        ({"metrics": {"listen": "h:70000"}}, "metrics.listen", "HOST:PORT"),
        ({"server": {"http": ["http://0.0.0.0:7421"]}}, "server.http", "beyond loopback"),
        ({"server": {"http": ["https://127.0.0.1:7421"]}}, "server.http", "needs server.tls"),
        ({"metrics": {"listen": "0.0.0.0:9420"}}, "metrics.listen", "metrics.insecure = true"),
        ({"metrics": {"tls": {"key": "k"}}}, "metrics.tls.certificate", "must be given too"),
        ({"server": {"tls": {"client_ca": "c"}}}, "server.tls.client_ca", "without certificate and key"),
        ({"server": {"socket_group": ""}}, "server.socket_group", "at least 1"),
        ({"dead_letters": {"topic": "bad"}}, "dead_letters.topic", "source.kind"),
        ({"dead_letters": {"path": "x/../spool"}}, "dead_letters.path", "must not be source.path"),
        ({"checkpoint": {"path": "x/../spool"}}, "checkpoint.path", "must not be source.path"),
        ({"results": {"kind": "spool", "path": "x/../spool"}}, "results.path", "must not be source.path"),
        ({"graph": "directed"}, "graph", "must be a table"),
        ({"program": {"name": "bfs"}}, "program", "must be a list of tables: [[program]]"),
        ({"storage": {"threads": 0}}, "storage.threads", "must be 'auto' or greater than or equal to 1"),
        ({"compute": {"threads": "many"}}, "compute.threads", "must be 'auto' or a whole number"),
        ({"epoch": {"updates_max": 1e30}}, "epoch.updates_max", "must be a whole number"),
        ({"epoch": {"linger_ms": "long"}}, "epoch.linger_ms", "must be a number"),
        ({"graph": {"directed": "maybe"}}, "graph.directed", "must be true or false"),
        ({"checkpoint": {"path": ""}}, "checkpoint.path", "must name a folder"),
        ({"program": [{"name": "bfs", "source": "x"}]}, "program[0]", "expected 64-bit integers"),
        ({"program": [{"name": "ppr", "sources": ["1", "9" * 20]}]}, "program[0]", "expected 64-bit integers"),
        (
            {"graph": {"vertex_ids": "string"}, "program": [{"name": "bfs", "source": "x" * 257}]},
            "program[0]",
            "expected texts of at most 256 bytes",
        ),
        ({"checkpoint": {"interval": float("nan")}}, "checkpoint.interval", "finite"),
        ({"checkpoint": {"keep": True}}, "checkpoint.keep", "must be a whole number"),
        ({"checkpoint": {"interval": True}}, "checkpoint.interval", "must be a number"),
        ({"compute": {"threads": True}}, "compute.threads", "must be a whole number"),
        ({"checkpoint": {"path": "a\0b"}}, "checkpoint.path", "without a zero byte"),
        ({"server": {"token_file": "a\0b"}}, "server.token_file", "without a zero byte"),
        ({"server": {"socket_group": "a\0b"}}, "server.socket_group", "without a zero byte"),
        ({"server": {"listen": ["unix:a\0b"]}}, "server.listen", "without a zero byte"),
        ({"server": {"listen": ["unix:./s"], "http": ["unix:s"]}}, "server.http", "given once (unix:s)"),
        ({"server": {"listen": ["tcp://127.0.0.1:7"] * 2}}, "server.listen", "given once (tcp://127.0.0.1:7)"),
        ({"server": {"listen": ["tcp://[::1]:7"], "http": ["http://[::1]:7"]}}, "server.http", "given once"),
        (
            {"server": {"listen": ["tcp://127.0.0.1:7"], "http": ["http://0.0.0.0:7"], "insecure": True}},
            "server.http",
            "given once (http://0.0.0.0:7)",
        ),
        ({"metrics": {"listen": "127.0.0.1:7420"}}, "metrics.listen", "server.listen has tcp://127.0.0.1:7420"),
        (
            {"metrics": {"listen": "127.0.0.1:7"}, "server": {"http": ["http://127.0.0.1:7"]}},
            "metrics.listen",
            "server.http has http://127.0.0.1:7",
        ),
        (
            {"metrics": {"listen": "0.0.0.0:7420", "insecure": True}},
            "metrics.listen",
            "server.listen has tcp://127.0.0.1:7420",
        ),
        ({"server": {"limits": {"vertices_max": 2**63}}}, "server.limits.vertices_max", "at most 9,223"),
        ({"server": {"limits": {"edges_max": "9" * 5000}}}, "server.limits.edges_max", "at most 9,223"),
        ({"source": {"start": {"a": {"0": 2**63}}}}, "source.start", "topic -> partition -> offset"),
        ({"source": {"start": {"a": {"²": 1}}}}, "source.start", "topic -> partition -> offset"),
        ({"program": [{"name": "bfs", "id": "x"}, {"name": "pagerank", "id": "x"}]}, "program[1].id", "differ"),
        ({"program": [{"name": "pagerank"}, {"name": "pagerank"}]}, "program[1].id", "differ"),
        ({"program": [{"name": "pagrank"}]}, "program[0]", "did you mean 'pagerank'?"),
        ({"program": [{"name": "bfs"}]}, "program[0]", "needs the parameter 'source'"),
        ({"program": [{"name": "pagerank", "dampng": 0.5}]}, "program[0]", "did you mean 'damping'?"),
        ({"program": [{"name": "bfs", "source": 1, "plac": "host"}]}, "program[0]", "did you mean 'place'?"),
        ({"program": [{"name": "pagerank", "damping": 2}]}, "program[0]", "damping = 2 is not allowed"),
    ],
)
def test_contradictions_are_refused_at_their_key(tables: dict[str, Any], key: str, words: str) -> None:
    found = refused(tables)
    assert words in found[key]["allowed"]


def test_options_of_kafkas_client_are_of_the_kind_that_it_takes() -> None:
    given = {
        "request_timeout_ms": "20000",
        "reconnect_backoff_ms": 0,
        "receive_buffer_bytes": "65536",
        "security_protocol": "SSL",
        "ssl_check_hostname": "false",
        "api_version": ["3", 9],
    }
    assert from_tables({"source": {"client": given}}).source.client_options() == {
        **given,
        "request_timeout_ms": 20_000,
        "receive_buffer_bytes": 65_536,
        "ssl_check_hostname": False,
        "api_version": (3, 9),
    }


def test_any_free_port_may_be_asked_for_more_than_once() -> None:
    server = {"listen": ["tcp://127.0.0.1:0"] * 2, "http": ["http://127.0.0.1:0"]}
    config = from_tables({"server": server, "metrics": {"listen": "127.0.0.1:0"}})
    assert len(config.server.listen) == 2


def test_one_port_at_two_addresses_is_no_clash() -> None:
    server = {"listen": ["tcp://127.0.0.1:7", "tcp://127.0.0.2:7"], "http": ["http://[::1]:7"]}
    config = from_tables({"server": server, "metrics": {"listen": "localhost:7"}})
    assert config.metrics.address() == TcpAddress("localhost", 7)


@pytest.mark.parametrize("home", ["/home/some one", ""])
def test_a_path_may_begin_with_a_tilde(monkeypatch: pytest.MonkeyPatch, home: str) -> None:
    if home:
        monkeypatch.setenv("HOME", home)
    else:  # as where a service has none: it is the one that the system knows
        monkeypatch.delenv("HOME")
        home = pwd.getpwuid(os.getuid()).pw_dir
    client = {"ssl_cafile": "~/ca.pem", "security_protocol": "SSL"}
    config = from_tables(
        {
            "source": {"path": "~/spool", "client": client},
            "checkpoint": {"path": "~"},
            "server": {
                "listen": ["unix:~/s", "tcp://127.0.0.1:7"],
                "http": ["unix:~/h"],
                "tls": {"certificate": "~/c.pem", "key": "k~.pem"},
            },
        }
    )
    assert (config.source.path, config.checkpoint.path) == (Path(home, "spool"), Path(home))
    assert (config.server.tls.certificate, config.server.tls.key) == (Path(home, "c.pem"), Path("k~.pem"))
    assert config.source.client_options()["ssl_cafile"] == f"{home}/ca.pem"
    places = [place for _, _, place in config.server.places()]
    assert places == [UnixAddress(f"{home}/s"), TcpAddress("127.0.0.1", 7), UnixAddress(f"{home}/h")]


def test_a_home_that_nobody_knows_is_no_folder_of_that_name(tmp_path: Path) -> None:
    """The folder would be made in the working directory, and looked for elsewhere."""
    found = refused(
        {
            "source": {"client": {"ssl_cafile": "~no-such-user/ca.pem"}},
            "checkpoint": {"path": "~no-such-user/c"},
            "server": {"listen": ["unix:~no-such-user/s"], "http": ["unix:~no-such-user/h"]},
        }
    )
    keys = ("source.client.ssl_cafile", "checkpoint.path", "server.listen[0]", "server.http[0]")
    assert found.keys() == set(keys)
    assert all("the home that ~no-such-user stands for is not known" in found[key]["allowed"] for key in keys)
    with pytest.raises(ConfigError, match="~no-such-user"):
        load(Path("~no-such-user/graphtide.toml"), environ={})


def test_a_secret_is_read_from_the_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "password").write_text("of the home\n")
    source = {"client": {"sasl_plain_password_file": "~/password"}}
    options = from_tables({"source": source}).source.client_options()
    assert options == {"sasl_plain_password": "of the home"}


def test_dead_letters_never_go_back_into_a_source_topic() -> None:
    source = {"kind": "kafka", "bootstrap_servers": ["h:1"], "topics": ["a"]}
    assert (
        "for ever" in refused({"source": source, "dead_letters": {"topic": "a"}})["dead_letters.topic"]["allowed"]
    )


def test_addresses_beyond_loopback_need_tls_or_consent() -> None:
    listen = ["tcp://0.0.0.0:7420"]
    assert from_tables({"server": {"listen": listen, "insecure": True}}).server.listen == tuple(listen)
    tls = {"certificate": "c.pem", "key": "k.pem"}
    assert from_tables({"server": {"listen": listen, "tls": tls}}).server.tls.key == Path("k.pem")
    everywhere = "0.0.0.0:9420"
    for word in ({"insecure": True}, {"tls": tls}):
        assert from_tables({"metrics": {"listen": everywhere, **word}}).metrics.listen == everywhere
    for loopback in ("tcp://127.0.0.1:0", "tcp://[::1]:7420", "tcp://localhost:7420", "unix:/tmp/x"):
        assert from_tables({"server": {"listen": [loopback]}}).server.listen == (loopback,)


def test_a_file_that_is_missing_or_not_toml_is_one_message(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load(tmp_path / "none.toml", environ={})
    broken = tmp_path / "broken.toml"
    broken.write_text("[source\n")
    with pytest.raises(ConfigError, match=r"is not TOML: .*line 1"):
        load(broken, environ={})
    broken.write_text("source = " + "[" * 100_000)
    with pytest.raises(ConfigError, match="is not TOML: maximum recursion"):
        load(broken, environ={})


@pytest.mark.parametrize("text", ["a{} = 1", "[source{}]", "[source]\ntopics = [{{b{} = 1}}]"])
def test_keys_of_dots_without_end_are_refused_and_not_a_crash(tmp_path: Path, text: str) -> None:
    deep = tmp_path / "deep.toml"
    deep.write_text(text.format(".a" * 5_000))
    with pytest.raises(ConfigError, match=r"deep\.toml nests tables or lists more than 32 deep"):
        load(deep, environ={})
    for flags in (
        [("--set", "source" + ".a" * 5_000, "1")],
        [("--set", "source.client", "{a" + ".a" * 5_000 + "=1}")],
    ):
        with pytest.raises(ConfigError, match="must "):
            load(environ={}, flags=flags)
    with pytest.raises(ConfigError, match="no more than 32 parts"):
        load(environ={"GRAPHTIDE_SOURCE" + "__A" * 5_000: "1"})


def test_a_setting_below_a_value_is_refused_and_not_a_crash() -> None:
    with pytest.raises(ConfigError) as caught:
        load(environ={"GRAPHTIDE_SOURCE": "x", "GRAPHTIDE_SOURCE__PATH": "y"})
    assert "must be a table" in problems(caught.value)["source"]["allowed"]


# -- programs, addresses, start -----------------------------------------------------------------------------


def test_ids_default_to_the_name_and_to_name_and_parameters_where_ambiguous() -> None:
    config = from_tables(
        {
            "program": [
                {"name": "bfs", "source": 1},
                {"name": "bfs", "source": 2},
                {"name": "bfs", "source": 3, "id": "hops"},
                {"name": "pagerank", "damping": 0.9},
            ]
        }
    )
    assert [program.id for program in config.program] == ["bfs(1)", "bfs(2)", "hops", "pagerank"]


@pytest.mark.parametrize(
    ("given", "start"),
    [
        ("earliest", "earliest"),
        ("latest", "latest"),
        ("2026-01-31T12:00:00Z", datetime(2026, 1, 31, 12, tzinfo=UTC)),
        ("2026-01-31", datetime(2026, 1, 31, tzinfo=UTC)),
        (datetime(2026, 1, 31, 12), datetime(2026, 1, 31, 12, tzinfo=UTC)),
        ({"a.csv": 17}, {"a.csv": 17}),
        ({"edges": {"0": 5, "1": 7}}, {"edges": {0: 5, 1: 7}}),
    ],
)
def test_start_is_a_word_a_time_or_offsets(given: Any, start: Any) -> None:
    kafka = {"kind": "kafka", "bootstrap_servers": ["h:1"], "topics": ["edges"]}
    flat = isinstance(given, dict) and "a.csv" in given
    source = from_tables({"source": {**({} if flat else kafka), "start": given}}).source
    assert source.start == start
    if isinstance(start, datetime):
        assert source.start_position() == start.timestamp() * 1000
    else:
        assert source.start_position() == start


def test_addresses() -> None:
    assert parse_tcp("[::1]:7420") == TcpAddress("::1", 7420)
    for wrong in ("", "x", "x:y", ":1", "::1:7420", "h:65536", "tcp://h:1"):
        with pytest.raises(ValueError, match="must be HOST:PORT"):
            parse_tcp(wrong)
    assert is_loopback(TcpAddress("127.9.9.9", 1)) and is_loopback(UnixAddress("/x"))
    assert not is_loopback(TcpAddress("0.0.0.0", 1)) and not is_loopback(TcpAddress("graph.example", 1))


def test_the_socket_lies_where_the_system_says() -> None:
    assert default_socket_path({"RUNTIME_DIRECTORY": "/run/graphtide"}) == "/run/graphtide/graphtide.sock"
    assert default_socket_path({"XDG_RUNTIME_DIR": "/run/user/7"}) == "/run/user/7/graphtide.sock"
    alone = default_socket_path({})
    assert alone == ("/run/graphtide.sock" if os.geteuid() == 0 else "./graphtide.sock")


def test_the_socket_has_no_name_that_others_could_take_first(monkeypatch: pytest.MonkeyPatch) -> None:
    for user in (0, 1000):
        monkeypatch.setattr(os, "geteuid", lambda user=user: user)
        folder = Path(default_socket_path({})).parent
        assert folder == (Path("/run") if user == 0 else Path()), "a folder that all may write is no place for it"


@pytest.mark.parametrize("mode", [0o1777, 0o777, 0o757, 0o755, 0o700])
def test_the_default_socket_is_not_made_where_others_may_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    monkeypatch.chdir(tmp_path)
    tmp_path.chmod(mode)
    text = f"unix:{SOCKET_HERE}"
    found = next(doctor._addresses(from_tables({"server": {"listen": [text]}, "metrics": {"listen": "off"}})))
    assert found.status == ("fail" if mode & 0o002 else "ok")
    if mode & 0o002:
        with pytest.raises(ConfigError, match=rf"server\.listen: .*{tmp_path}/graphtide\.sock.*XDG_RUNTIME_DIR"):
            bind_socket(text, beyond_loopback=False)
        assert not list(tmp_path.iterdir())
        named = f"unix:{tmp_path}/s"  # whoever names one has decided
        bind_socket(named, beyond_loopback=False)[0].close()
    else:
        bind_socket(text, beyond_loopback=False)[0].close()


def test_a_folder_of_another_user_is_one_that_others_may_write(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    for owner in (0, 1000, 1001):
        folder: Any = SimpleNamespace(stat=lambda owner=owner: SimpleNamespace(st_mode=0o700, st_uid=owner))
        assert others_may_write(folder) == (owner == 1001)


@settings(deadline=None, max_examples=examples(50))
@given(st.text(max_size=40))
def test_any_text_of_a_variable_is_a_value_and_never_a_crash(text: str) -> None:
    value = parse_text(text)
    assert value == text or isinstance(value, (list, dict))
    with suppress(ConfigError):
        load(environ={"GRAPHTIDE_SOURCE__START": text, "GRAPHTIDE_SERVER__LISTEN": text})


def test_dotted() -> None:
    assert dotted(("program", 0, "source")) == "program[0].source"


# -- secrets ------------------------------------------------------------------------------------------------

SECRET = "correct-horse"


def test_secrets_are_never_printed(tmp_path: Path) -> None:
    environ = {"GRAPHTIDE_SERVER__TOKEN": SECRET, "GRAPHTIDE_SOURCE__CLIENT__SASL_PLAIN_PASSWORD": SECRET}
    loaded = load(environ=environ)
    shown = config_show.effective_toml(loaded)
    assert SECRET not in shown and MASK in shown
    assert SECRET not in repr(loaded.config.server)
    assert loaded.config.server.read_tokens() == (SECRET,)
    assert loaded.config.source.client_options() == {"sasl_plain_password": SECRET}


@pytest.mark.parametrize(
    "tables",
    [
        {"server": {"tokn": SECRET}},
        {"server": {"token": [SECRET]}},
        {"server": {"token": "short"}},
        {"source": {"client": {"ssl_passwrd": 1, "sasl_secret": SECRET, "sasl_secret_file": "x"}}},
    ],
)
def test_secrets_are_masked_in_messages(tables: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        from_tables(tables)
    assert SECRET not in caught.value.message and SECRET not in str(caught.value.detail)
    assert '= "short"' not in caught.value.message


def test_secrets_from_files(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text(f"{SECRET}\n")
    config = from_tables(
        {"server": {"token_file": str(file)}, "source": {"client": {"sasl_plain_password_file": str(file)}}}
    )
    assert config.server.read_tokens() == (SECRET,)
    assert config.source.client_options() == {"sasl_plain_password": SECRET}
    file.write_text("\n")
    with pytest.raises(ConfigError, match="empty"):
        config.server.read_tokens()
    file.unlink()
    with pytest.raises(ConfigError, match="cannot be read"):
        config.source.client_options()


def test_a_file_may_hold_several_tokens(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    server = from_tables({"server": {"token_file": str(file)}}).server
    file.write_text(f"\n {SECRET} \r\nanother-one\n\n")
    assert server.read_tokens() == (SECRET, "another-one")
    assert from_tables({}).server.read_tokens() == ()
    for wrong, where in ((f"{SECRET}\nshort\n", "line 2"), ("x" * 513, "line 1"), ("  \n", "has 0 lines")):
        file.write_text(wrong)
        with pytest.raises(ConfigError, match=where) as caught:
            server.read_tokens()
        assert "server.token_file" in caught.value.message and "short" not in caught.value.message
    file.write_text("one-token\n" * 17)
    with pytest.raises(ConfigError, match="1 to 16 tokens"):
        server.read_tokens()
    file.write_bytes(b"\xff" * 9)
    with pytest.raises(ConfigError, match=r"tokens': cannot be read: it is not UTF-8$"):
        server.read_tokens()
    file.unlink()
    with pytest.raises(ConfigError, match=r"tokens': cannot be read: No such file or directory$"):
        server.read_tokens()


def test_what_counts_as_a_secret() -> None:
    assert is_secret("server.token") and is_secret("sasl_plain_password") and is_secret("ssl_password")
    assert not is_secret("server.token_file") and not is_secret("sasl_oauth_token_provider")
    assert not is_secret("source.path")


# -- what is printed ----------------------------------------------------------------------------------------


def test_the_printed_settings_load_again_to_the_same_configuration(tmp_path: Path) -> None:
    given = {
        "source": {
            "kind": "kafka",
            "bootstrap_servers": ["h:1"],
            "topics": ["edges"],
            "path": 'odd "name" \\',
            "start": datetime(2026, 1, 31, tzinfo=UTC),
            "client": {"security_protocol": "SSL", "ssl_check_hostname": False},
            "columns": {
                "src": "row.a",
                "dst": ["row", "b.c"],
                "op": "kind",
                "op_values": {"insert": ["c", "u"], "delete": ["d"]},
            },
        },
        "graph": {"vertex_ids": "string"},
        "program": [
            {"name": "bfs", "source": [1, 2]},
            {"name": "bfs", "source": "a\tb", "id": "x", "place": "device"},
        ],
        "checkpoint": {"interval": 1.5},
        "server": {"limits": {"top_k_max": 3}},
    }
    file = tmp_path / "in.toml"
    config = from_tables(given)
    loaded = load(environ={})
    printed = config_show.effective_toml(type(loaded)(config, {"source.topics": "file x"}))
    assert "# file x" in printed
    file.write_text(printed)
    assert load(file, environ={}).config == config


def test_every_key_is_printed_with_its_meaning() -> None:
    printed = config_show.effective_toml(load(environ={}))
    tables = tomllib.loads(printed)
    for name, field in Config.model_fields.items():
        assert name in tables
        if name != "program":
            assert isinstance(field.annotation, type) and issubclass(field.annotation, Section)
            for key, inner in field.annotation.model_fields.items():
                assert key in printed
                assert inner.description


def test_the_documentation_is_the_model() -> None:
    page = ROOT / "docs" / "configuration.md"
    expected = config_show.configuration_markdown()
    assert page.read_text("utf-8") == expected, "python -m graphtide.daemon.config.show > docs/configuration.md"


def test_the_example_in_the_documentation_is_valid() -> None:
    example = config_show.INTRODUCTION.split("```toml\n")[1].split("```")[0]
    config = from_tables(tomllib.loads(example))
    assert config.program[0].id == "hops" and config.source.kind == "kafka"


def test_a_place_of_its_own_goes_before_that_of_all_programs() -> None:
    config = from_tables(
        {
            "compute": {"place": "host"},
            "program": [{"name": "components", "place": "device"}, {"name": "pagerank"}],
        }
    )
    assert [config.place_of(id) for id in ("components", "pagerank", "kept-at-run-time")] == [
        "device",
        "host",
        "host",
    ]
    assert config.program[0].parameters == {}
    assert config.uses_device
    only_host = {"compute": {"place": "host"}, "program": [{"name": "pagerank"}]}
    assert not from_tables(only_host).uses_device
    assert from_tables({**only_host, "device": {"enabled": "on"}}).uses_device
    assert set(refused({"program": [{"name": "pagerank", "place": "card"}]})) == {"program[0].place"}


def test_a_file_as_editors_of_windows_write_it(tmp_path: Path) -> None:
    file = tmp_path / "graphtide.toml"
    file.write_bytes(b"\xef\xbb\xbf[graph]\r\ndirected = false\r\n")
    assert not load(file, environ={}).config.graph.directed
    file.write_bytes(b"[log]\n# caf\xe9\n")
    with pytest.raises(ConfigError, match=r"is not UTF-8 \(at line 2\)"):
        load(file, environ={})


def test_what_is_wrong_in_several_ways_at_once_is_one_problem() -> None:
    with pytest.raises(ConfigError) as caught:
        from_tables({"storage": {"threads": 0}})
    assert len(caught.value.detail["problems"]) == 1


@pytest.mark.parametrize(
    ("tables", "key"),
    [
        (
            {
                "graph": {"vertex_ids": "string", "weights": "none"},
                "program": [{"name": "bfs", "source": "b"}],
            },
            "graph.weights",
        ),
        ({"source": {"kind": "kafka", "topcs": ["a"]}, "dead_letters": {"topic": "bad"}}, "source.topcs"),
        ({"program": [{"id": "hops", "nam": "bfs"}], "results": {"programs": ["hops"]}}, "program[0].name"),
    ],
)
def test_of_a_section_with_mistakes_no_other_is_said_to_contradict_it(tables: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        from_tables(tables)
    assert [problem["key"] for problem in caught.value.detail["problems"]] == [key]
