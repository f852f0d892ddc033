"""Which version of a key is current: the newest in the index, and what has the key's own name in storage.

The two are told one after the other, by processes that know nothing of each other. So a row says where its
body is by then, and whoever has put an object into its place looks whether the index agrees.
"""

from __future__ import annotations

import msgspec

from cumulus.index.api import Change, Put, Remove, Row
from cumulus.ops.names import version_name
from cumulus.ops.site import Site


def removal(site: Site, row: Row, stamp: int) -> list[Change]:
    """What the index has to hear when a version has gone. What comes next, and may be current by that, has
    its name as an older version until it gets the key's own: so its row says that, or a scan would take it
    for one that others have removed."""
    changes: list[Change] = []
    if site.atomic:
        page = site.index.page_versions(
            row.bucket, prefix=row.key, after=row.key, after_version=row.version, limit=1
        )
        for behind in page.rows:
            name = version_name(row.key, behind.version)
            older = behind.key == row.key and not (behind.marker or behind.latest)
            if older and behind.name != name:
                changes.append(Put(row=msgspec.structs.replace(behind, name=name), keep=True))
    return [*changes, Remove(bucket=row.bucket, key=row.key, stamp=stamp, version=row.version)]
