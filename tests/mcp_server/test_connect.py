"""`herdbook connect`: the change is shown, the rest of the file stays, what cannot be edited is left alone."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from mcp_server.connect import HOSTS, ConnectRefused, apply, entry, plan

JSON_HOSTS = [name for name in HOSTS if name != "codex"]


@pytest.mark.parametrize("name", JSON_HOSTS)
def test_json_files_keep_everything_else(name: str, tmp_path: Path) -> None:
    host = HOSTS[name]
    path = tmp_path / "settings.json"
    other = {"theme": "dark", host.key: {"other": {"command": "x"}}, "ключ": "ü"}
    path.write_text(json.dumps(other, indent=4, ensure_ascii=False), encoding="utf-8")
    change = plan(host, path, entry(host, command="/opt/bin/herdbook"))
    assert "herdbook" in change.diff()
    backup = apply(change)
    data = json.loads(path.read_text(encoding="utf-8"))
    assert data.pop(host.key) == {"other": {"command": "x"}, "herdbook": entry(host, command="/opt/bin/herdbook")}
    assert data == {"theme": "dark", "ключ": "ü"}
    assert backup is not None
    assert json.loads(backup.read_text(encoding="utf-8")) == other


def test_toml_keeps_comments_and_other_servers(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    before = '# mine\nmodel = "x"\n\n[mcp_servers.other]\ncommand = "y"  # why\n'
    path.write_text(before, encoding="utf-8")
    apply(plan(HOSTS["codex"], path, entry(HOSTS["codex"], command="herdbook")))
    text = path.read_text(encoding="utf-8")
    assert "# mine" in text
    assert "# why" in text
    assert tomllib.loads(text)["mcp_servers"]["herdbook"]["args"] == ["serve"]
    assert tomllib.loads(text)["mcp_servers"]["other"] == {"command": "y"}


@pytest.mark.parametrize("name", sorted(HOSTS))
def test_a_missing_file_is_made_and_doing_it_twice_changes_nothing(name: str, tmp_path: Path) -> None:
    host = HOSTS[name]
    path = tmp_path / "deep" / ("c.toml" if name == "codex" else "c.json")
    item = entry(host, command="herdbook")
    assert apply(plan(host, path, item)) is None
    assert plan(host, path, item).diff() == ""


@pytest.mark.parametrize("text", ['{"a": 1, // comment\n}', "[1, 2]", '{"mcpServers": 5}', "not json"])
def test_a_file_that_cannot_be_edited_safely_is_left_alone(text: str, tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConnectRefused, match="by hand"):
        plan(HOSTS["cursor"], path, entry(HOSTS["cursor"], command="herdbook"))
    assert path.read_text(encoding="utf-8") == text


def test_the_environment_of_an_earlier_entry_and_the_first_backup_are_kept(tmp_path: Path) -> None:
    host, path = HOSTS["cursor"], tmp_path / "mcp.json"
    path.write_text(json.dumps({"mcpServers": {"herdbook": {"command": "old", "env": {"A": "1"}}}}), encoding="utf-8")
    first = apply(plan(host, path, entry(host, command="new")))
    assert json.loads(path.read_text(encoding="utf-8"))["mcpServers"]["herdbook"]["env"] == {"A": "1"}
    second = apply(plan(host, path, entry(host, command="newer")))
    assert first is not None
    assert second is not None
    assert first != second
    assert "old" in first.read_text(encoding="utf-8")
