"""The share coordinator (KIP-932): the persisted state of share partitions, on top of
`__share_group_state`.
"""
