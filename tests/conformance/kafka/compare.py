"""Compare decisions with Kafka's own classes on generated cases, by hand; a JDK compiles `java/Decide.java`.

    python -m tests.conformance.kafka.compare assignors --count 1000 --seed 7
    python -m tests.conformance.kafka.compare scram --count 20000

The cases that differ are printed in the format of the corpus. Left out is what Kafka's assignors do by mistake: they
fail where an earlier owner of a partition can neither give nor take any, and give partitions to members that do not
subscribe.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from odradek.core.kafka.assignors.user_data import encode_generation, encode_sticky
from odradek.testing.jars import maven_jars
from odradek.testing.kafka.releases import NEWEST, release
from odradek.types import TopicPartition

from .case import Record
from .replay import checker, kind_of

Line = dict[str, Any]


class Java:
    """Kafka's own classes, in a process of their own."""

    def __init__(self, directory: str, version: str = NEWEST) -> None:
        jars = ":".join(map(str, maven_jars(release(version).coordinates)))
        source = Path(__file__).with_name("java") / "Decide.java"
        subprocess.run(["javac", "-nowarn", "-cp", jars, "-d", directory, source], check=True)
        self._process = subprocess.Popen(
            ["java", "-cp", f"{jars}:{directory}", "Decide"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def decide(self, line: Line) -> Line:
        """Return the line with what Kafka decides."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{json.dumps(line)}\n")
        self._process.stdin.flush()
        decided: Line = json.loads(self._process.stdout.readline())
        return decided

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


# ---- assignors ---------------------------------------------------------------------------------------------------


class Group:
    """A group whose members join, leave, subscribe anew, and claim what is not theirs.

    Args:
        chance: Decides all of it.
    """

    def __init__(self, chance: random.Random) -> None:
        self._chance, self._number = chance, 0
        self._assignor = chance.choice(["sticky", "cooperative-sticky"])
        self._racks = [f"r{n}" for n in range(chance.randint(1, 4))] if chance.random() < 0.6 else []
        self._topics = {f"{chance.choice(['t', 'orders', 'A', 'z.'])}{n}": 0 for n in range(chance.randint(1, 8))}
        self._replicas: dict[str, list[list[str]]] = {}
        for topic in self._topics:
            self._grow(topic, chance.choice([0, 1, 2, 3, 5, 8, 13]))
        self._uneven = chance.random() < 0.5
        self._members = [self._member() for _ in range(chance.choice([1, 2, 3, 4, 6, 9]))]
        self._generation = 0
        self._story = ["fresh"]

    def rounds(self, java: Java) -> Iterator[Line]:
        """Return every rebalance as a line of the corpus; after one that Kafka fails, there is no other."""
        for number in range(self._chance.choice([1, 2, 4, 6])):
            line = java.decide(json.loads(json.dumps(self._line(number))))
            yield line
            if "error" in line or not self._members:
                return
            self._take(line["assignment"])
            self._change()

    def _line(self, number: int) -> Line:
        for member in self._members:
            owned = [TopicPartition(*partition) for partition in member["owned"]]
            if self._assignor != "sticky":
                member["user_data"] = encode_generation(member["generation"]).hex()
            elif owned or member["generation"] >= 0:
                member["user_data"] = encode_sticky(owned, member["generation"]).hex()
        return {
            "round": number,
            "assignor": self._assignor,
            "story": ";".join(self._story),
            "topics": self._topics,
            "replica_racks": self._replicas if self._racks else None,
            "members": self._members,
        }

    def _member(self) -> Line:
        chance, self._number = self._chance, self._number + 1
        name = f"{chance.choice(['c', 'consumer', 'x-1', 'Z', 'a'])}-{chance.randrange(1000)}-{self._number}"
        racks = [*self._racks, None, "elsewhere"] if chance.random() < 0.3 else self._racks
        return {
            "member_id": name,
            "instance_id": f"s{self._number}" if chance.random() < 0.1 else None,
            "rack": chance.choice(racks) if racks else None,
            "topics": self._subscription(),
            "owned": [],
            "generation": -1,
            "user_data": None,
        }

    def _subscription(self) -> list[str]:
        names = sorted(self._topics)
        return sorted(self._chance.sample(names, self._chance.randint(1, len(names)))) if self._uneven else names

    def _grow(self, topic: str, count: int) -> None:
        self._topics[topic] += count
        racks = self._racks or ["none"]
        self._replicas.setdefault(topic, []).extend(
            self._chance.sample(racks, self._chance.randint(1, len(racks))) for _ in range(count)
        )

    def _take(self, assignment: dict[str, list[Any]]) -> None:
        """Give members what was assigned; some keep what they had, with an older generation."""
        self._generation += 1
        for member in self._members:
            if self._chance.random() < 0.9:
                member["owned"], member["generation"] = assignment[member["member_id"]], self._generation

    def _change(self) -> None:
        chance, self._story = self._chance, []
        changes = [self._join, self._leave, self._add_partitions, self._move_replicas, self._resubscribe, self._claim]
        for change in chance.sample(changes, chance.choice([1, 1, 2, 3])):
            self._story.append(change.__name__.strip("_"))
            change()
        chance.shuffle(self._members)

    def _join(self) -> None:
        self._members += [self._member() for _ in range(self._chance.randint(1, 3))]

    def _leave(self) -> None:
        for member in self._chance.sample(self._members, len(self._members) // 3):
            self._members.remove(member)

    def _add_partitions(self) -> None:
        self._grow(self._chance.choice(sorted(self._topics)), self._chance.randint(1, 3))

    def _move_replicas(self) -> None:
        topic = self._chance.choice(sorted(self._topics))
        self._replicas[topic] = []
        count, self._topics[topic] = self._topics[topic], 0
        self._grow(topic, count)

    def _resubscribe(self) -> None:
        self._chance.choice(self._members)["topics"] = self._subscription()

    def _claim(self) -> None:
        owner, other = self._chance.choice(self._members), self._chance.choice(self._members)
        if owner is not other:
            other["owned"] = other["owned"] + owner["owned"][: self._chance.randint(0, 3)]


def assignor_cases(java: Java, chance: random.Random) -> Iterator[Line]:
    """Yield the rebalances of one group."""
    return Group(chance).rounds(java)


# ---- SCRAM -------------------------------------------------------------------------------------------------------

MESSAGES = {
    "client_first": ["n,,n=user,r=abc", "n,a=me,n=us=2Cer,r=abc,tokenauth=true", "n,a=x=3Dy,m=q=1,n=u=3D,r=a!b,x=y=z"],
    "server_first": ["r=abc,s=QUJD,i=4096", "m=a=b,r=x,s=QUI=,i=12,x=1", "r=a,s=QQ==,i=2147483648", "r=a,s=,i=00009"],
    "client_final": ["c=biws,r=abcdef,p=QUJD", "c=biws,r=abcdef,x=1,p=QUJD", "c=,r=a,p="],
    "server_final": ["v=QUJD", "v=QUJD,x=1", "e=other-error", "e=other,x=1", "v=QUI=,e=x"],
}
FRAGMENTS = [
    *"=,aZ09\0\x01\x7f ~\xe9\u20ac\n+/-",
    *["=2C", "=3D", "=2c", "e=", "v=", "r=", "n=", "i=", "s=", "m=", ",x=1", "=="],
]


def scram_cases(java: Java, chance: random.Random) -> Iterator[Line]:
    """Yield one text: a message in which characters were put in, taken out or replaced."""
    message = chance.choice(sorted(MESSAGES))
    text = chance.choice(MESSAGES[message])
    for _ in range(chance.choice([0, 1, 1, 2, 3])):
        start = chance.randrange(len(text) + 1)
        fragment = chance.choice([*FRAGMENTS, ""])
        text = text[:start] + fragment + text[start + chance.choice([0, 1]) :]
    yield java.decide({"message": message, "text": text})


# ---- by hand -----------------------------------------------------------------------------------------------------


def is_mistake(line: Record) -> bool:
    """Return True if Kafka failed, or gave partitions to a member that does not subscribe."""
    if "error" in line:
        return True
    wants = {member["member_id"]: member["topics"] for member in line.get("members", ())}
    return any(topic not in wants[name] for name, got in line.get("assignment", {}).items() for topic, _ in got)


def main() -> None:
    """Compare, and print what differs and the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["assignors", "scram"])
    parser.add_argument("--count", type=int, default=1000, help="groups, or texts")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    cases = assignor_cases if options.what == "assignors" else scram_cases
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as directory:
        java = Java(directory)
        for number in range(options.count):
            for line in cases(java, random.Random(f"{options.seed} {number}")):
                line["case"] = number
                difference = None if is_mistake(line) else checker(kind_of(line))(line)
                counts["mistakes of Kafka" if is_mistake(line) else "different" if difference else "same"] += 1
                if difference:
                    print(json.dumps(line))
        java.close()
    print(", ".join(f"{count} {what}" for what, count in sorted(counts.items())))


if __name__ == "__main__":
    main()
