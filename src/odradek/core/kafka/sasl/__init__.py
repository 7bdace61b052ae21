"""The exchanges by which a client proves who it is (specification 4.3).

An exchange is a generator: it yields a token for the broker and is sent the broker's answer to it, until it returns
(the broker has proved what the mechanism lets it prove) or raises AuthFailed. Whether tokens travel raw or inside
SaslAuthenticate requests is no business of the exchange.
"""

from odradek.core.kafka.sasl.authentication import authenticate, authenticate_again_at
from odradek.core.kafka.sasl.exchange import Exchange
from odradek.core.kafka.sasl.oauthbearer import OAuthBearer
from odradek.core.kafka.sasl.plain import Plain
from odradek.core.kafka.sasl.scram import Scram

__all__ = ["Exchange", "OAuthBearer", "Plain", "Scram", "authenticate", "authenticate_again_at"]
