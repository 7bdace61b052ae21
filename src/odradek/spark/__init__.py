"""Topics as tables: the data source for Spark. Spark calls the classes in `source` and `sink`; the other modules
plan."""
