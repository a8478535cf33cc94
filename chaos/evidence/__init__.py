"""What a run left in topics, tables, disks, objects and logs, read without the code under test."""
