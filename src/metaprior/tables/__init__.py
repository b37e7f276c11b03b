"""From CSV, Parquet and pandas tables to tasks, and from predictions back to tables."""
