"""Files of certificates that a server believes, and those that are none."""

from __future__ import annotations

from pathlib import Path

import pytest
from s3_tls import write_certificate

from cumulus.http.trust import Trust, read_certificates
from sector.errors import BadConfig


def test_several_certificates_in_one_file(tmp_path: Path) -> None:
    """With text between them."""
    one, two = (write_certificate(tmp_path, name)[0].read_bytes() for name in ("one", "two"))
    both = tmp_path / "both.pem"
    both.write_bytes(b"# ours\n" + one + b"# theirs\n" + two)
    assert len(read_certificates(both)) == 2
    Trust(both).creatorForNetloc(b"[::1]", 443)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "No such file"),
        ("nothing", "no certificate in PEM"),
        ("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "cannot be read"),
    ],
)
def test_what_is_no_certificate_is_refused(tmp_path: Path, text: str | None, says: str) -> None:
    """With the file's name and what to give."""
    path = tmp_path / "ca.pem"
    if text is not None:
        path.write_text(text)
    with pytest.raises(BadConfig, match=says) as caught:
        Trust(path)
    assert str(path) in caught.value.message and "PEM" in caught.value.hint
