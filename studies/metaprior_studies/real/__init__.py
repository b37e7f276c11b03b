"""All schemes compared on real data."""
