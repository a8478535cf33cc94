"""The application's tables: for each its name, its key, and what its rows look like and how they change."""
