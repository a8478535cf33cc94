"""What a service is made of: messages, tables, outcomes, handlers, wiring, and how an application is cut."""
