"""No secret of a running cluster is seen outside of where it belongs: logs, command lines, environments,
modes of files (spec/security.md, "Files")."""

from __future__ import annotations

import base64
import stat
import tomllib
from pathlib import Path

from cluster import Cluster, write_random


def forms(secret: bytes) -> list[bytes]:
    """How a secret may be written."""
    plain = base64.b64encode(secret)
    return [secret, secret.hex().encode(), plain, plain.rstrip(b"="), base64.urlsafe_b64encode(secret)]


def processes(cluster: Cluster) -> list[Path]:
    """What /proc has of the services and of all their children."""
    found, grown = set(cluster.pids()), True
    while grown:
        grown = False
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) in found:
                continue
            try:
                above = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except OSError:
                continue
            if above in found:
                found.add(int(entry.name))
                grown = True
    return [Path("/proc", str(pid), name) for pid in found for name in ("cmdline", "environ")]


def test_secrets_stay_where_they_belong(tmp_path: Path) -> None:
    """With all parts at log level debug: logins good and bad, users, transfers, then a look everywhere."""
    cluster = Cluster(tmp_path, slaves=2)
    try:
        cluster.start()
        cluster.stop()
        up = tmp_path / "up"
        for config in up.glob("*.toml"):
            text = config.read_text()
            if "[log]" in text:
                config.write_text(text.replace('level = "info"', 'level = "debug"'))
        cluster.start()
        password, wrong = tmp_path / "password", tmp_path / "wrong"
        password.write_text("a-password-of-bob-7731")
        wrong.write_text("a-wrong-password-8842")
        write_random(tmp_path / "data", 3 << 20, 1)
        cluster.ok("user", "add", "bob", "--password-file", str(password))
        cluster.refused("login", cluster.info["master"], "--user", "bob", "--password-file", str(wrong))
        cluster.ok("put", str(tmp_path / "data"), "/data")
        cluster.ok("get", "/data", str(tmp_path / "back"))
        cluster.ok("user", "passwd", "bob", "--password-file", str(wrong))
        cluster.ok("status")
        seen = {file: file.read_bytes() for file in processes(cluster)}
        seen |= {log: log.read_bytes() for log in (up / "log").iterdir()}
        assert any(b'"level": "debug"' in text for text in seen.values())
        secrets = [password.read_bytes(), wrong.read_bytes(), (up / "admin.password").read_bytes().strip()]
        secrets += [bytes.fromhex((up / "cluster.key").read_text().strip())]
        session = tomllib.loads((tmp_path / "client.toml").read_text())
        secrets += [bytes.fromhex(session["client"]["secret"])]
        for secret in secrets:
            assert len(secret) >= 12
            for form in forms(secret):
                assert not [str(file) for file, text in seen.items() if form in text]
        private = [*up.glob("*.key"), *up.glob("**/*.db"), up / "admin.password", tmp_path / "client.toml"]
        assert len(private) > 5
        for file in private:
            assert stat.S_IMODE(file.stat().st_mode) & 0o077 == 0, file
    finally:
        cluster.stop()
