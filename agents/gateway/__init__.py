"""The sandbox payment gateway, a process of its own (`python -m agents.gateway`), and its client."""
