"""The parts of a service: messages, tables, outcomes, handlers, wiring, and how an application is cut."""
