"""What has been decided and is not yet committed."""
