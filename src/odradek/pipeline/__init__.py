"""Topics in, tables out, on Spark: what `odradek pipeline` runs. A leaf that nothing else imports."""
