"""This node as a client of others: voters, the active controller, partition leaders."""
