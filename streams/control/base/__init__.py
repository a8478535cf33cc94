"""Access, questions to workers, and formats that all pages share."""
