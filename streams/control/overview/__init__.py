"""The overview, health, and the picture of the flow."""
