"""Requests to where users say: which addresses may be reached, and a POST that reaches only the address it checked.

A name is resolved once, here. Every address that it has is judged, and the connection goes to one of these, so what
the name says a moment later (DNS rebinding) gains nothing. Plain Python.
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    import httpx

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
Resolver = Callable[[str, int], Sequence[Address]]

_CONNECT_SECONDS = 3.0
_ANSWER_CAP_BYTES = 64 * 1024
_BRACKETED = re.compile(r"\[[^\[\]]*\](:[0-9]*)?")
_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}")
# The registries of special-purpose addresses, written out: `ipaddress.is_global` differs between Python's versions.
_SPECIAL: dict[Network, str] = {
    ip_network(network): kind
    for kind, networks in {
        "an unspecified": "0.0.0.0/8 ::/128",
        "a loopback": "127.0.0.0/8 ::1/128",
        "a private": "10.0.0.0/8 172.16.0.0/12 192.168.0.0/16 100.64.0.0/10 fc00::/7 fec0::/10",
        "a link-local": "169.254.0.0/16 fe80::/10",
        "a multicast": "224.0.0.0/4 ff00::/8",
        # 168.63.129.16 looks public, and is a cloud's own host to the machines in it.
        "a reserved": "192.0.0.0/24 192.0.2.0/24 192.88.99.0/24 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 "
        "240.0.0.0/4 168.63.129.16/32 2001::/23 2001:db8::/32 3fff::/20",
    }.items()
    for network in networks.split()
}
_GLOBAL_V6 = IPv6Network("2000::/3")
# Prefixes that carry an IPv4 address, and how many bits stand behind it: mapped, NAT64, 6to4.
_EMBEDDING = {IPv6Network("::ffff:0:0/96"): 0, IPv6Network("64:ff9b::/96"): 0, IPv6Network("2002::/16"): 80}


class BadURL(ValueError):
    """No URL that a request can go to; the message says why, and may be shown to who sent it."""


class Unreachable(Exception):
    """No answer came, or none was asked for; the message names no path and no query."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where a URL leads. `host` is in lower case; `address` is set where the URL names one itself."""

    url: str
    host: str
    port: int
    address: Address | None

    @classmethod
    def of(cls, url: str) -> Target:
        """Raises `BadURL`."""
        # urlsplit would drop tabs and newlines in silence, and take a backslash for a letter.
        if not re.fullmatch(r"[!-\[\]-~]+", url):
            raise BadURL("it must be plain ASCII without blanks or backslashes; percent-encode what is not")
        try:
            parts = urlsplit(url)
            host, port = parts.hostname or "", parts.port
        except ValueError:
            # Versions of Python differ in what they already refuse around brackets.
            wrong = "it may have only an IPv6 address in brackets" if "[" in url else "its host or port cannot be"
            raise BadURL(wrong) from None
        if parts.scheme not in ("http", "https"):
            raise BadURL("it must begin with http:// or https://")
        if "@" in parts.netloc:
            raise BadURL("it must not have a user or a password")
        if port == 0:
            raise BadURL("there is no port 0")
        host = host.removesuffix(".")
        default = 443 if parts.scheme == "https" else 80
        address = _literal(host)
        # Brackets hold an IPv6 address: not an IPvFuture literal, and nothing stands around them but a port.
        if "[" in parts.netloc and not (isinstance(address, IPv6Address) and _BRACKETED.fullmatch(parts.netloc)):
            raise BadURL("it may have only an IPv6 address in brackets")
        return cls(url.partition("#")[0], host, port or default, address)

    @property
    def is_local_name(self) -> bool:
        return self.host == "localhost" or self.host.endswith(".localhost")


def _literal(host: str) -> Address | None:
    """The address that a host is written as, `127.1` and `0x7f000001` included; None for a name."""
    if "%" in host:
        raise BadURL("its host must not name an interface")
    with suppress(ValueError):
        return ip_address(host)
    if not all(_LABEL.fullmatch(label) for label in host.split(".")) or len(host) > 253:
        raise BadURL("it must name a host")
    # A name that ends in a number is an address in one of its older spellings, or nothing.
    if re.fullmatch(r"\d+|0x[0-9a-f]*", host.rpartition(".")[2]):
        try:
            return IPv4Address(socket.inet_aton(host))
        except OSError:
            raise BadURL(f"{host} is no address") from None
    return None


@dataclass(frozen=True, slots=True)
class Allowed:
    """What may be reached beside public addresses: whole names, and networks."""

    hosts: frozenset[str] = frozenset()
    networks: tuple[Network, ...] = ()

    def refusal(self, host: str, address: Address) -> str | None:
        """Why the address must not be reached under that name, as `10.0.0.1 is a private address`; None if it may."""
        if host in self.hosts or any(address in network for network in self.networks):
            return None
        if (inner := embedded(address)) is not None:
            said = self.refusal(host, inner)
            return said and f"{address} leads to {inner}, and {said}"
        kind = kind_of(address)
        return kind and f"{address} is {kind} address"


def embedded(address: Address) -> IPv4Address | None:
    """The IPv4 address that an IPv6 one only wraps."""
    for network, shift in _EMBEDDING.items():
        if address in network:
            return IPv4Address(int(address) >> shift & 0xFFFFFFFF)
    return None


def kind_of(address: Address) -> str | None:
    """`a private`, `a loopback` …; None for one that is public."""
    kind = next((kind for network, kind in _SPECIAL.items() if address in network), None)
    if kind is None and isinstance(address, IPv6Address) and address not in _GLOBAL_V6:
        return "a reserved"
    return kind


def check(url: str, allowed: Allowed) -> None:
    """What can be told without asking the name's servers. Raises `BadURL`."""
    target = Target.of(url)
    addresses = [target.address] if target.address else []
    if target.is_local_name:
        addresses = [IPv4Address("127.0.0.1"), IPv6Address("::1")]
    for address in addresses:
        if said := allowed.refusal(target.host, address):
            raise BadURL(said if target.address else f"{target.host} is this machine, and {said}")


def resolve(host: str, port: int) -> list[Address]:
    """The system's answer, each address once. Raises `OSError`."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    # An address of this link comes as `fe80::1%eth0`.
    return list(dict.fromkeys(ip_address(str(info[4][0]).partition("%")[0]) for info in found))


class Poster:
    """POSTs to allowed addresses; follows no redirect, uses no proxy, and gives up after `seconds` in all."""

    def __init__(
        self,
        allowed: Allowed,
        *,
        resolve: Resolver = resolve,
        trusted: ssl.SSLContext | None = None,
        seconds: float = 10.0,
    ) -> None:
        # Here and below: the web process and the workers check URLs, and need no HTTP library for it.
        import httpx

        self._allowed = allowed
        self._resolve = resolve
        self._trusted = trusted or httpx.create_ssl_context()
        self._seconds = seconds

    def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> int:
        """The answer's status, whatever it is. Raises `Unreachable`."""
        import httpx

        began = time.monotonic()
        try:
            target = Target.of(url)
            addresses = self._addresses(target)
            left = self._seconds - (time.monotonic() - began)
            # A loop a request: only there does one deadline hold over handshake, writing and each byte read.
            return asyncio.run(self._post(target, addresses, body, headers, left))
        except (TimeoutError, httpx.TimeoutException):
            raise Unreachable(f"no answer within {self._seconds:g} s") from None
        except httpx.ConnectError as error:
            raise Unreachable(f"no connection: {error}") from None
        except (BadURL, httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            raise Unreachable(f"no answer: {type(error).__name__}") from None

    def _addresses(self, target: Target) -> Sequence[Address]:
        if target.address is not None:
            addresses: Sequence[Address] = [target.address]
        else:
            try:
                addresses = self._resolve(target.host, target.port)
            except (OSError, UnicodeError):
                raise Unreachable(f"no address: {target.host} does not resolve") from None
        for address in addresses:
            if said := self._allowed.refusal(target.host, address):
                raise Unreachable(f"not allowed: {said}")
        return addresses

    async def _post(
        self, target: Target, addresses: Sequence[Address], body: bytes, headers: Mapping[str, str], left: float
    ) -> int:
        import httpx

        deadline = asyncio.get_running_loop().time() + left
        timeout = httpx.Timeout(self._seconds, connect=_CONNECT_SECONDS)
        async with httpx.AsyncClient(verify=self._trusted, timeout=timeout, trust_env=False) as client:
            async with asyncio.timeout_at(deadline):
                answer = await _send(client, target, addresses, body, headers)
            # The status has been said. The rest is read so that the receiver need not see a broken connection.
            with suppress(httpx.HTTPError, TimeoutError):
                async with asyncio.timeout_at(deadline):
                    await _drain(answer)
            return answer.status_code


async def _send(
    client: httpx.AsyncClient, target: Target, addresses: Sequence[Address], body: bytes, headers: Mapping[str, str]
) -> httpx.Response:
    """The head of the answer of the first address that takes the connection."""
    import httpx

    url = httpx.URL(target.url)
    named = {"Host": url.netloc.decode("ascii")} | dict(headers)
    failed: httpx.TransportError | None = None
    for address in addresses:
        request = client.build_request("POST", url.copy_with(host=str(address)), content=body, headers=named)
        request.extensions["sni_hostname"] = target.host
        try:
            return await client.send(request, stream=True)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            failed = error
    raise failed or Unreachable(f"no address: {target.host} has none")


async def _drain(answer: httpx.Response) -> None:
    size = 0
    try:
        async for part in answer.aiter_raw():
            size += len(part)
            if size >= _ANSWER_CAP_BYTES:
                return
    finally:
        await answer.aclose()
