"""Builders of plans, runs and ledgers that tests of every room share."""
