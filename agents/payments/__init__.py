"""The payments service: charges an order's card once, and gives the money back when the order fails."""
