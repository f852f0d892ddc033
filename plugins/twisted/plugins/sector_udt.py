"""Twisted finds the `udt:` endpoints of clientFromString and serverFromString here."""

from sector._udt.strings import UdtClientParser, UdtServerParser

udt_client = UdtClientParser()
udt_server = UdtServerParser()
