"""Consumer groups of KIP-848: the coordinator assigns, and members follow one by one (PURE).

member      one member: what it asked for, what it has, what it must give back
reconcile   the next step of one member towards the target assignment
assignors   the target assignment, from subscriptions and the target before
"""
