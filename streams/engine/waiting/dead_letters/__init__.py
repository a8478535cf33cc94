"""Dead letters: the record, its row, and the table of rows."""
