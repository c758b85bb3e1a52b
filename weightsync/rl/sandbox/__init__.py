"""Places where programs run that nobody trusts: what a policy wrote, and what it is graded by.

`api` is what a backend offers; `zygote` forks them from a warm interpreter, `landlock` confines a new process.
"""
