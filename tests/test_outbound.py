"""Where requests may go, and a POST that goes nowhere else."""

from __future__ import annotations

import datetime
import ssl
from collections.abc import Callable, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st

from inclavate.outbound import Address, Allowed, BadURL, Poster, Target, Unreachable, check, embedded
from tests import servers
from tests.receivers import receiving

NOTHING = Allowed()
LOOPBACK = Allowed(networks=(ip_network("127.0.0.0/8"),))
HOME = ip_address("127.0.0.1")
SPECIAL_V4 = (
    "0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 192.0.2.0/24 "
    "192.168.0.0/16 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 224.0.0.0/4 240.0.0.0/4 168.63.129.16/32"
)
SPECIAL_V6 = "::/96 fc00::/7 fe80::/10 fec0::/10 ff00::/8 2001::/32 2001:db8::/32 100::/64 64:ff9b:1::/48 5f00::/16"


def within(networks: str) -> st.SearchStrategy[Address]:
    return st.sampled_from(networks.split()).flatmap(lambda network: st.ip_addresses(network=network))


def wrapped(address: IPv4Address) -> list[IPv6Address]:
    number = int(address)
    return [
        IPv6Address(int(IPv6Address("::ffff:0:0")) + number),
        IPv6Address(int(IPv6Address("64:ff9b::")) + number),
        IPv6Address(int(IPv6Address("2002::")) + (number << 80) + 1),
    ]


@given(within(SPECIAL_V4))
def test_no_special_ipv4_address_is_reached_in_any_form(address: IPv4Address) -> None:
    assert all(NOTHING.refusal("a.example", form) for form in [address, *wrapped(address)])


@given(within(SPECIAL_V6))
def test_no_special_ipv6_address_is_reached(address: IPv6Address) -> None:
    assert NOTHING.refusal("a.example", address)


@given(st.ip_addresses())
def test_what_python_knows_to_be_no_public_unicast_address_is_never_reached(address: Address) -> None:
    # What wraps an IPv4 address is as public as that one; versions of Python differ over it.
    if embedded(address) is None and (not address.is_global or address.is_multicast):
        assert NOTHING.refusal("a.example", address)


@pytest.mark.parametrize("text", ["1.1.1.1", "172.32.0.1", "192.169.0.1", "223.255.255.255", "2606:4700::1111"])
def test_public_addresses_are_reached(text: str) -> None:
    address = ip_address(text)
    forms = [address, *(wrapped(address) if isinstance(address, IPv4Address) else [])]
    assert [NOTHING.refusal("a.example", form) for form in forms] == [None] * len(forms)


@given(within("10.0.0.0/8"))
def test_an_allowed_network_is_reached_and_its_neighbours_are_not(address: IPv4Address) -> None:
    allowed = Allowed(networks=(ip_network("10.0.0.0/8"),))
    assert all(allowed.refusal("a.example", form) is None for form in [address, *wrapped(address)])
    assert allowed.refusal("a.example", IPv4Address("192.168.0.1"))


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("ftp://a.example/", "it must begin with http:// or https://"),
        ("a.example/hook", "it must begin with http:// or https://"),
        ("http:///hook", "it must name a host"),
        ("http://a..example/", "it must name a host"),
        ("http://-a.example/", "it must name a host"),
        ("http://" + "a" * 64 + ".example/", "it must name a host"),
        ("http://ann:secret@a.example/", "it must not have a user or a password"),
        ("http://@a.example/", "it must not have a user or a password"),
        ("http://a.example:0/", "there is no port 0"),
        ("http://a.example:65536/", "its host or port cannot be"),
        ("http://a.example:x/", "its host or port cannot be"),
        ("http://[::1/", "it may have only an IPv6 address in brackets"),
        ("http://[v1.x]/", "it may have only an IPv6 address in brackets"),
        ("http://[V7.10:80]:80/", "it"),
        ("http://a.example[2606:4700::1]/", "it may have only an IPv6 address in brackets"),
        ("http://[2606:4700::1].a.example/", "it may have only an IPv6 address in brackets"),
        ("http://[1.1.1.1]/", "it"),
        ("http://[2606:4700::1%25eth0]/", "its host must not name an interface"),
        ("http://a.exa\tmple/", "it must be plain ASCII"),
        ("http://a.example\\@127.0.0.1/", "it must be plain ASCII"),
        ("http://ä.example/", "it must be plain ASCII"),
        ("http://1.2.3.4.5/", "1.2.3.4.5 is no address"),
        ("http://127.0.0.1:8080/", "127.0.0.1 is a loopback address"),
        ("http://127.1/", "127.0.0.1 is a loopback address"),
        ("http://2130706433/", "127.0.0.1 is a loopback address"),
        ("http://0x7f.0.0.0x1/", "127.0.0.1 is a loopback address"),
        ("http://017700000001/", "127.0.0.1 is a loopback address"),
        ("http://10.0.0.1./", "10.0.0.1 is a private address"),
        ("http://169.254.169.254/latest", "169.254.169.254 is a link-local address"),
        ("http://224.0.0.1/", "224.0.0.1 is a multicast address"),
        ("http://0/", "0.0.0.0 is an unspecified address"),
        ("http://[::]/", ":: is an unspecified address"),
        ("http://[::1]/", "::1 is a loopback address"),
        ("http://[fd00::1]/", "fd00::1 is a private address"),
        ("http://[::ffff:10.0.0.1]/", "leads to 10.0.0.1, and 10.0.0.1 is a private address"),
        ("http://[64:ff9b::7f00:1]/", "leads to 127.0.0.1, and 127.0.0.1 is a loopback address"),
        ("http://[2002:a00:1::]/", "leads to 10.0.0.1, and 10.0.0.1 is a private address"),
        ("https://LOCALHOST./", "localhost is this machine, and 127.0.0.1 is a loopback address"),
        ("http://a.localhost/", "a.localhost is this machine"),
    ],
)
def test_a_bad_url_is_refused_with_a_sentence(url: str, sentence: str) -> None:
    with pytest.raises(BadURL) as refused:
        check(url, NOTHING)
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        "https://a.example",
        "HTTP://A.example:8080/x?y=%20#z",
        "http://1.1.1.1/",
        "http://a_b.example./",
        "http://[2606:4700::1]:80",
    ],
)
def test_a_plain_url_passes(url: str) -> None:
    check(url, NOTHING)


def test_what_the_settings_allow_passes() -> None:
    check("http://127.0.0.1:9/", LOOPBACK)
    check("http://localhost:9/", Allowed(hosts=frozenset({"localhost"})))
    with pytest.raises(BadURL, match="::1 is a loopback address"):
        check("http://localhost:9/", LOOPBACK)


def test_host_and_port_are_those_that_will_be_asked() -> None:
    target = Target.of("https://A.Example./x")
    assert (target.host, target.port, target.address) == ("a.example", 443, None)


# -- posting -----------------------------------------------------------------------------------------------------------


class Names:
    """A resolver that gives its answers in turn."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, int]] = []

    def __call__(self, host: str, port: int) -> list[Address]:
        self.asked.append((host, port))
        return [ip_address(text) for text in self.answers.pop(0)]


def test_a_post_goes_to_the_resolved_address_under_the_urls_own_host() -> None:
    names = Names(["127.0.0.1"])
    with receiving() as receiver:
        status = Poster(LOOPBACK, resolve=names).post(
            f"http://a.example:{receiver.port}/x?y=1#z", b"news", {"webhook-id": "1"}
        )
    (received,) = receiver.received
    assert (status, received.path, received.body) == (200, "/x?y=1", b"news")
    assert (received.headers["Host"], received.headers["webhook-id"]) == (f"a.example:{receiver.port}", "1")
    assert names.asked == [("a.example", receiver.port)]


def test_a_name_that_changes_to_a_forbidden_address_is_not_followed() -> None:
    with receiving() as receiver:
        poster = Poster(Allowed(networks=(ip_network("127.0.0.1"),)), resolve=Names(["127.0.0.1"], ["127.0.0.2"]))
        url = f"http://a.example:{receiver.port}/"
        assert poster.post(url, b"", {}) == 200
        with pytest.raises(Unreachable, match=r"not allowed: 127\.0\.0\.2 is a loopback address"):
            poster.post(url, b"", {})
    assert len(receiver.received) == 1


def test_one_forbidden_address_among_a_names_answers_stops_the_post() -> None:
    with receiving() as receiver:
        poster = Poster(NOTHING, resolve=Names(["1.1.1.1", "127.0.0.1"]))
        with pytest.raises(Unreachable, match="not allowed"):
            poster.post(f"http://a.example:{receiver.port}/", b"", {})
    assert receiver.received == []


def test_the_systems_own_answers_are_judged_too() -> None:
    with receiving() as receiver, pytest.raises(Unreachable, match=r"not allowed: .* is a loopback address"):
        Poster(NOTHING).post(f"http://localhost:{receiver.port}/", b"", {})
    assert receiver.received == []


def test_a_names_next_address_is_tried_where_the_first_takes_no_connection() -> None:
    with receiving() as receiver:
        poster = Poster(LOOPBACK, resolve=Names(["127.0.0.2", "127.0.0.1"]))
        assert poster.post(f"http://a.example:{receiver.port}/", b"", {}) == 200


def test_an_allowed_name_may_lead_anywhere() -> None:
    with receiving() as receiver:
        poster = Poster(Allowed(hosts=frozenset({"a.example"})), resolve=Names(["127.0.0.1"]))
        assert poster.post(f"http://a.example:{receiver.port}/", b"", {}) == 200


def test_a_redirect_is_an_answer_and_is_not_followed() -> None:
    with receiving() as target, receiving(statuses=[302], location=target.url) as receiver:
        assert Poster(LOOPBACK).post(receiver.url, b"", {}) == 302
    assert target.received == []


def test_a_proxy_of_the_environment_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    with receiving() as receiver:
        assert Poster(LOOPBACK).post(receiver.url, b"", {}) == 200


def test_an_answer_that_never_ends_costs_the_time_out_and_no_more() -> None:
    with receiving(drips=b"x") as receiver, pytest.raises(Unreachable, match=r"no answer within 0\.3 s"):
        Poster(LOOPBACK, seconds=0.3).post(receiver.url, b"", {})


def test_a_receiver_that_does_not_answer_is_given_up() -> None:
    with receiving() as receiver:
        receiver.going_on.clear()
        with pytest.raises(Unreachable, match=r"no answer within 0\.3 s"):
            Poster(LOOPBACK, seconds=0.3).post(receiver.url, b"", {})


def test_of_an_endless_body_only_a_little_is_read() -> None:
    with receiving(body=bytes(65536)) as receiver:
        assert Poster(LOOPBACK, seconds=3.0).post(receiver.url, b"", {}) == 200
    # What the sockets of both ends hold is on its way by then.
    assert receiver.sent_bytes < 32 * 2**20


def test_what_refuses_the_connection_is_unreachable_and_its_path_is_not_named() -> None:
    with pytest.raises(Unreachable, match="no connection") as failed:
        Poster(LOOPBACK).post(f"http://127.0.0.1:{servers.free_port()}/hidden", b"", {})
    assert "hidden" not in str(failed.value)


def test_a_name_that_does_not_resolve_is_unreachable() -> None:
    def resolve(host: str, port: int) -> list[Address]:
        raise OSError(-2, "Name or service not known")

    with pytest.raises(Unreachable, match=r"a\.example does not resolve"):
        Poster(LOOPBACK, resolve=resolve).post("http://a.example/", b"", {})
    with pytest.raises(Unreachable, match=r"a\.example has none"):
        Poster(LOOPBACK, resolve=Names([])).post("http://a.example/", b"", {})


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], tuple[ssl.SSLContext, ssl.SSLContext]]:
    """A server's context with a certificate for a.example, and a client's that trusts it."""
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    _certify(path)

    def contexts() -> tuple[ssl.SSLContext, ssl.SSLContext]:
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.load_cert_chain(path)
        return server, ssl.create_default_context(cafile=path)

    return contexts


def _certify(path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "a.example")])
    now = datetime.datetime.now(datetime.UTC)
    built = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    built = built.not_valid_before(now - datetime.timedelta(days=1)).not_valid_after(now + datetime.timedelta(days=1))
    built = built.add_extension(x509.SubjectAlternativeName([x509.DNSName("a.example")]), critical=False)
    built = built.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(secret + built.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))


def test_over_tls_the_name_is_asked_for_and_its_certificate_checked(certified) -> None:
    server, trusted = certified()
    asked: list[str] = []
    server.sni_callback = lambda sock, name, context: asked.append(name)
    with receiving(tls=server) as receiver:
        poster = Poster(LOOPBACK, resolve=Names(["127.0.0.1"], ["127.0.0.1"]), trusted=trusted)
        assert poster.post(f"https://a.example:{receiver.port}/", b"", {}) == 200
        with pytest.raises(Unreachable, match=r"no connection: .*certificate"):
            poster.post(f"https://b.example:{receiver.port}/", b"", {})
    assert asked == ["a.example", "b.example"]
    assert len(receiver.received) == 1


def test_a_certificate_of_nobody_known_is_not_taken(certified) -> None:
    server, _ = certified()
    with receiving(tls=server) as receiver, pytest.raises(Unreachable, match=r"no connection: .*certificate"):
        Poster(LOOPBACK, resolve=Names(["127.0.0.1"])).post(f"https://a.example:{receiver.port}/", b"", {})
    assert receiver.received == []
