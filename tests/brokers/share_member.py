"""A member of a share group in a process of its own, which a test can kill.

    python share_member.py BOOTSTRAP TOPIC GROUP

It writes a line for each delivery, the value and the delivery count, before it accepts the record.
"""

from __future__ import annotations

import sys

import anyio

import odradek as od


async def main(*arguments: str) -> None:
    bootstrap, topic, group = arguments
    async with od.connect(f"kafka://{bootstrap}") as cluster, cluster.share_consumer(topic, group=group) as consumer:
        sys.stdout.write("joined\n")
        sys.stdout.flush()
        async for record in consumer:
            sys.stdout.write(f"{(record.value or b'').decode()} {record.delivery_count}\n")
            sys.stdout.flush()


anyio.run(main, *sys.argv[1:])
