"""Administration at the master: checks who asks, forwards to the security server, remembers who did it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from sector.errors import Denied, SectorError
from sector.master.security_link import SecurityLink
from sector.master.sessions import Sessions, View
from sector.rpc import Caller, RpcNode
from sector.wire import admin
from sector.wire.base import Message, Request

AuditLine = Callable[[str, str, str], None]

READS: tuple[type[Request], ...] = (admin.UserList, admin.AclList)
CHANGES: tuple[type[Request], ...] = (
    admin.UserAdd,
    admin.UserRemove,
    admin.UserRoles,
    admin.UserAddresses,
    admin.Grant,
    admin.Revoke,
    admin.AclChange,
)


def check_admin(view: View, request: Request, audit: AuditLine) -> None:
    """Refuse all but administrators, and note the attempt. Raises `Denied`."""
    if not view.is_admin:
        audit(f"user:{view.user}", "denied", type(request).__name__)
        raise Denied(f"user {view.user} is no administrator", hint="log in as one: sector login --user admin")


def register_admin(rpc: RpcNode, sessions: Sessions, link: SecurityLink, audit: AuditLine) -> None:
    """Serve UserList, UserAdd, UserRemove, UserRoles, UserAddresses, UserPasswd, Grant, Revoke,
    AclChange and AclList.
    `audit(who, what, detail)` adds a line to the audit log; changes themselves are logged by the security
    server together with the change."""

    async def forward(request: Any, view: View, *, change: bool) -> Message:
        try:
            reply: Message = await link.call(replace(request, by=f"user:{view.user}"))
        except SectorError as refused:
            if change:
                audit(f"user:{view.user}", "refused", f"{type(request).__name__}: {refused.message}")
            raise
        if change:
            link.changed()
        return reply

    async def read(request: Request, caller: Caller) -> Message:
        view = sessions.user_of(caller.principal)
        check_admin(view, request, audit)
        return await forward(request, view, change=False)

    async def change(request: Request, caller: Caller) -> Message:
        view = sessions.user_of(caller.principal)
        check_admin(view, request, audit)
        return await forward(request, view, change=True)

    async def passwd(request: admin.UserPasswd, caller: Caller) -> Message:
        view = sessions.user_of(caller.principal)
        if request.name != view.user:
            check_admin(view, request, audit)
            request = replace(request, old="")
        elif not request.old:
            raise Denied("your own password changes only with the old one", hint="give the old password")
        return await forward(request, view, change=True)

    for cls in READS:
        rpc.serve(cls, read)
    for cls in CHANGES:
        rpc.serve(cls, change)
    rpc.serve(admin.UserPasswd, passwd)
