"""Addresses, requests, login and the rendering of pages."""
