"""Asks the kernel how much came over each TCP connection of this host, as `ss --info` does."""

import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

# linux/netlink.h, sock_diag.h, inet_diag.h, tcp.h.
NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY = 4, 20
NLM_F_REQUEST_DUMP, NLMSG_ERROR, NLMSG_DONE = 0x301, 2, 3
INET_DIAG_INFO, ALL_STATES = 2, 0xFFFFFFFF
HEADER, QUESTION, ATTRIBUTE = struct.Struct("=IHHII"), struct.Struct("=BBBxI48x"), struct.Struct("=HH")
# Of inet_diag_msg the last field, and what comes before the attributes; in tcp_info tcpi_bytes_received.
INODE, ATTRIBUTES, RECEIVED = 68, 72, 128
BUFFER, WAIT_SECONDS = 1 << 16, 5.0


def received_by_socket() -> dict[int, int]:
    """Return the bytes that came over each TCP connection so far, by the number of its socket; raises OSError."""
    received = {}
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, NETLINK_SOCK_DIAG) as kernel:
        kernel.settimeout(WAIT_SECONDS)
        for family in (socket.AF_INET, socket.AF_INET6):
            question = QUESTION.pack(family, socket.IPPROTO_TCP, 1 << (INET_DIAG_INFO - 1), ALL_STATES)
            size = HEADER.size + len(question)
            kernel.send(HEADER.pack(size, SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST_DUMP, 0, 0) + question)
            for message in _messages(kernel):
                (inode,) = struct.unpack_from("=I", message, INODE)
                for kind, value in _attributes(message):
                    if kind == INET_DIAG_INFO and len(value) >= RECEIVED + 8:
                        (received[inode],) = struct.unpack_from("=Q", value, RECEIVED)
    return received


def sockets_of(pid: int) -> Iterator[int]:
    """Yield the numbers of the sockets that a process has open; raises OSError."""
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            link = str(descriptor.readlink())
        except FileNotFoundError:
            # It was closed meanwhile.
            continue
        if link.startswith("socket:["):
            yield int(link[len("socket:[") : -1])


def _messages(kernel: socket.socket) -> Iterator[bytes]:
    while True:
        told, place = kernel.recv(BUFFER), 0
        while place < len(told):
            size, kind, *_ = HEADER.unpack_from(told, place)
            if kind == NLMSG_DONE:
                return
            if kind == NLMSG_ERROR:
                (number,) = struct.unpack_from("=i", told, place + HEADER.size)
                raise OSError(-number, os.strerror(-number))
            yield told[place + HEADER.size : place + size]
            place += _aligned(size)


def _attributes(message: bytes) -> Iterator[tuple[int, bytes]]:
    place = ATTRIBUTES
    while place + ATTRIBUTE.size <= len(message):
        size, kind = ATTRIBUTE.unpack_from(message, place)
        yield kind, message[place + ATTRIBUTE.size : place + size]
        place += max(_aligned(size), ATTRIBUTE.size)


def _aligned(size: int) -> int:
    return (size + 3) & ~3
