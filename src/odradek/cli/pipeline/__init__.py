"""`odradek pipeline`: one module per verb. What a verb needs beyond the extra `cli` is imported when it runs."""
