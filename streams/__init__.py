"""The reliability layer: handlers, lanes and exactly-once commits on Faust. It knows nothing of orders."""
