"""Long-running processes: what all of them have (`process`), and what each of them does (`subscribe`, `publish`, `serve`, `observe`).

                    process: SIGTERM, watchdog, /metrics /healthz /readyz, sd_notify
                        |
    publish --commit--> notice . . . . . .> control plane <. . . . . . registers, reports --- subscribe
        |                                       . watch                                          |
        |                                       ............> bell: look now . . . . . . . . . > |
        +------> store <---------------------------------------------- polls, fetches -----------+

Dotted lines are hints: each runs in a thread of its own, may fail for ever, and decides only when something is looked at.
"""
