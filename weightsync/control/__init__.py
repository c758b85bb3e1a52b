"""The control plane over gRPC: who may ask what, what is new, who holds what. Every answer comes from the store, and nothing is a proof.

server.ControlServer     serves the runs of a store          client.ControlClient     asks, watches, reports
background.serving       a server in a thread, for programs that are not built on asyncio

             +-- poller: one task; polls the heads that are watched, at once after a Notify --+
  store <----+                                                                                +---> feed: one per channel; ordered
             +-- servicers: versions, channels, fleet, leases (reads and writes in threads)   |     events, encoded once for all
  caller ----> methods: access.py (role), deadline, errors to statuses -----> servicers <-----+     watchers; each has a cursor
"""
