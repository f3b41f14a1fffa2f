"""Schedules inside JAX programs; `gradweave.jax` is the front door."""
