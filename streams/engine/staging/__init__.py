"""Rows and messages that are decided and not yet committed."""
