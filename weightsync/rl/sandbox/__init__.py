"""Places where programs run that nobody trusts: what a policy wrote, and what it is graded by.

`api` is what a backend offers, and `weightsync.testing.sandbox_contract` what it must pass; `zygote` forks them from a warm interpreter.
"""
