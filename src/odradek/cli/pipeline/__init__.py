"""`odradek pipeline`: one module per verb. A verb imports what it needs beyond the extra `cli` when it runs."""
