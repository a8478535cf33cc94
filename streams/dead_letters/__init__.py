"""What was given up: the record, its row, and the table of rows."""
