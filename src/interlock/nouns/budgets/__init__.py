"""Budgets: the tokens and the money that agents spend, and limits for them."""
