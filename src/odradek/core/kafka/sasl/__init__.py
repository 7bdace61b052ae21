"""SASL exchanges, by which a client authenticates to a broker (kafka-specification.md 4.3).

An exchange is a generator: it yields a token for the broker and is sent the broker's response to it, until it returns
(the broker has proved its identity as far as the mechanism allows) or raises AuthFailed. It does not matter to an
exchange whether tokens are sent raw or in SaslAuthenticate requests.
"""

from odradek.core.kafka.sasl.authentication import authenticate, authenticate_again_at
from odradek.core.kafka.sasl.exchange import Exchange, UnansweredToken
from odradek.core.kafka.sasl.oauthbearer import OAuthBearer
from odradek.core.kafka.sasl.plain import Plain
from odradek.core.kafka.sasl.scram import Scram

__all__ = [
    "Exchange",
    "OAuthBearer",
    "Plain",
    "Scram",
    "UnansweredToken",
    "authenticate",
    "authenticate_again_at",
]
