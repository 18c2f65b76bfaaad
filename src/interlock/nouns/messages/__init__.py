"""Messages between agents: alerts, queries, shares, stops, mail, and decisions for a person."""
