"""The network of the host and of neighbours."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import struct

from attacks.table import Actor, Facts, add, attack

_SIOCGIFFLAGS, _SIOCSIFFLAGS = 0x8913, 0x8914
_ETH_P_ALL = 3


def _loopback(actor: Actor) -> str | None:
    with socket.create_connection(("127.0.0.1", actor.port), 5) as client:
        return "connected" if client.recv(256) == actor.token.encode() else None


def _port_taken(actor: Actor) -> str | None:
    with socket.socket() as server:
        try:
            server.bind(("127.0.0.1", actor.port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return "it is in use"
            raise
    return None


for _whose in ("host", "neighbour"):
    _of = "the_host" if _whose == "host" else "a_neighbour"
    for _name, _try, _gain in (
        ("loopback_of", _loopback, "services that trust 127.0.0.1 are reached"),
        ("port_taken_by", _port_taken, "servers for the same port stand in each other's way"),
    ):
        add(
            f"{_name}_{_of}",
            lambda facts, whose=_whose, attempt=_try: attempt(getattr(facts, whose)),
            gain=_gain,
        )


@attack(lack="hosts without a route to the Internet")
def route_out(facts: Facts) -> str | None:
    """Answers are looked up, secrets are sent away."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.connect(("192.0.2.1", 9))  # for documentation (RFC 5737); nothing is sent
    return "there is a route"


@attack(by="root")
def raw_socket(facts: Facts) -> str | None:
    """Packets are forged."""
    socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP).close()
    return "a raw socket"


@attack(by="root", lack="kernels without packet sockets")
def packet_socket(facts: Facts) -> str | None:
    """Packets of others are read."""
    protocol = socket.htons(_ETH_P_ALL)
    socket.socket(socket.AF_PACKET, socket.SOCK_RAW, protocol).close()
    return "a packet socket"


@attack(by="root")
def change_a_device_by_ioctl(facts: Facts) -> str | None:
    """The network is reconfigured: the loopback device gets the flags that it has."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        request = struct.pack("16sh14x", b"lo", 0)
        flags = fcntl.ioctl(client, _SIOCGIFFLAGS, request)
        fcntl.ioctl(client, _SIOCSIFFLAGS, flags)
    return "set"


@attack(by="root")
def change_a_device_by_netlink(facts: Facts) -> str | None:
    """The same through netlink."""
    new_link, request_and_acknowledge = 16, 5
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as link:
        link.settimeout(5)
        index = socket.if_nametoindex("lo")
        body = struct.pack("BxHiII", 0, 0, index, 0, 0)  # changes no flag
        head = struct.pack("IHHII", 16 + len(body), new_link, request_and_acknowledge, 1, 0)
        link.sendto(head + body, (0, 0))
        number = struct.unpack_from("i", link.recv(4096), 16)[0]
    if number:
        raise OSError(-number, os.strerror(-number))
    return "set"


@attack(lack="kernels without virtual machine sockets")
def virtual_machine_socket(facts: Facts) -> str | None:
    """Services of the hypervisor are reached, past all network namespaces."""
    socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM).close()
    return "a socket"


@attack(lack="kernels without user space cryptography (CONFIG_CRYPTO_USER_API)")
def kernel_cryptography(facts: Facts) -> str | None:
    """AF_ALG: much kernel code, with a record of holes, that nothing here needs."""
    socket.socket(socket.AF_ALG, socket.SOCK_SEQPACKET).close()
    return "a socket"


@attack(by="root")
def privileged_port_of_the_host(facts: Facts) -> str | None:
    """A port below 1024 of the host is taken."""
    if os.readlink("/proc/self/ns/net") != facts.namespaces["net"]:
        return None
    with socket.socket() as server:
        server.bind(("127.0.0.1", 1))
    return "port 1"
