"""Bounded reading: the ranges of logs that a query reads, its tasks, and their rows; of brokers or directories."""
