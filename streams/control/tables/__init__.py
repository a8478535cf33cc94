"""Tables: lookups, sizes, and rows of a standby."""
