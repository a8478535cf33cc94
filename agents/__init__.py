"""The order-fulfilment application that runs on `streams`: the part that a user replaces."""
