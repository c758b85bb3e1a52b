"""What is kept and for how long: policy, collection, copies to other stores, repair.

policy     which versions stay, and why (pure)
chains     which payloads lead to what stays, for the fewest bytes (pure)
survey     what a run holds: history, heads, pins, leases, objects
plan       from survey and boundary to the next boundary, and what may be deleted (pure)
collect    the collector: survey, mark, wait, survey again, condemn, delete
snapshot   a further payload that makes a long chain needless
objects    everything that a version consists of, each object with its digest
copy       a run, or a version with its chain, to another store
repair     objects that are missing or damaged, from who still has them
"""
