"""Topics as tables: the data source for Spark. What Spark itself touches is in `source` and `sink`; the rest plans."""
