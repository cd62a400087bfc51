"""Mbarriers, and the rounds of arrivals and waits on them."""
