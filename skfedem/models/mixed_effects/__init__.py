"""Nonlinear mixed effects: population models of repeated measurements, Gaussian in φ."""
