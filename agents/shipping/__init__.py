"""The shipping service: schedules an order's shipment, if anybody ships to where it goes."""
