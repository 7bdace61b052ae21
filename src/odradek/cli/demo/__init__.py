"""`odradek demo`: every part of the library at work, with an exact count of the messages at the end."""
