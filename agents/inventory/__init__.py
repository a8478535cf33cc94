"""The inventory service: sets an order's stock aside, and ships it or gives it back."""
