"""Who may do what, and who is who: rules, logins, passwords and tokens."""
