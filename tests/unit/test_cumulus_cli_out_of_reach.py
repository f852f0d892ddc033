"""Files and buckets that commands of Cumulus cannot reach: they go on where they can, and say what helps."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from by_the_rules import by_the_rules
from cumulus_commands import Commands
from test_cumulus_cli_buckets import store_object
from test_cumulus_cli_listed import adopt

from cumulus.config import load_config
from cumulus.opening import open_index


@pytest.fixture
def run(cloud: Commands) -> Commands:
    """A Cumulus with alice and bob."""
    cloud("user", "add", "alice")
    cloud("user", "add", "bob")
    return cloud


@pytest.mark.parametrize("words", ["bucket chown shared bob", "user remove alice --give-to bob"])
def test_a_file_that_may_not_be_read_changes_hands_with_its_bucket(
    run: Commands, tmp_path: Path, words: str
) -> None:
    """Of another account, in a directory that others use as well."""
    adopt(run, tmp_path / "shared", "a", "closed", "z")
    store_object(run, "shared", "b", b"hello")
    bob = run.json("user", "show", "bob")["id"]
    os.chown(tmp_path / "shared/closed", 12345, 12345)
    (tmp_path / "shared/closed").chmod(0)
    with by_the_rules():
        run(*words.split())
    index, directory = open_index(load_config(run.dir / "cumulus.toml"), lambda bad: None)
    found = index.bucket("shared")
    assert found is not None and found.owner == bob
    assert {row.key: row.owner for row in index.page_versions("shared").rows} == dict.fromkeys(
        ("a", "b", "closed", "z"), bob
    )
    index.close()
    directory.close()
