# SPDX-License-Identifier: Apache-2.0
"""Brings up the network device `lo`, which mpirun needs; some containers start with it down.

Uses the system calls themselves, since such a machine may not have the program `ip`.
"""

import fcntl
import socket
import struct

GET_FLAGS, SET_FLAGS, UP = 0x8913, 0x8914, 1  # SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP


def bring_up():
    """Returns a line that says what was found and done."""
    request = struct.Struct("16sH14x")
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            answer = fcntl.ioctl(any_socket, GET_FLAGS, request.pack(b"lo", 0))
            flags = request.unpack(answer)[1]
            if flags & UP:
                return "network device lo: up"
            fcntl.ioctl(any_socket, SET_FLAGS, request.pack(b"lo", flags | UP))
        return "network device lo: was down, brought up"
    except OSError as problem:
        return "network device lo: %s; several ranks may not start" % problem
