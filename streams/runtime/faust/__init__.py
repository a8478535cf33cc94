"""A worker under Faust: its app, group membership, web server and process."""
