"""The former place of `Notifier`, until every module imports it from `odradek.io.notifier`."""

from odradek.io.notifier import Notifier

__all__ = ["Notifier"]
