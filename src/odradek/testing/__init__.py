"""For tests, yours and ours: a real ZooKeeper, an embedded 0.7 broker, a proxy that misbehaves on command."""
