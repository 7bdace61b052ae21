"""Topics as tables: the data source for Spark. What is here plans and decides, without Spark and without sockets."""
