"""The embedded Kafka 0.7.2 broker.

config        keys and values
validate      what a message set must be to be stored
log, logs     one partition's segment files; all of them
requests      what a request does, and its answer
server        sockets
registration  ZooKeeper
broker_run, broker  the thread it runs on, and what a test sees of it
"""

from odradek.testing.kafka07.broker import BrokerStatistics, Kafka07Broker
from odradek.testing.kafka07.errors import BrokerHalted, StartRefused

__all__ = ["BrokerHalted", "BrokerStatistics", "Kafka07Broker", "StartRefused"]
