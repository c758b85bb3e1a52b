"""A verified copy of a version on this host: the image, its journal, the way to another version, and back to files.

    replica     what is held, and whether it is believed        transition  on the way to another version
    image       the weights, mapped                             journal     how to go back
    path        the cheapest way                                fetch       shards, verified before they are looked into
    cache       verified objects kept for a restart             update      path, download, decode, check, mark
    restore     checkpoint directories, byte for byte           verify      looks for damage, in the store or in a directory
    readers     the image for other processes

A kill at any byte leaves the old version or the new one. A power loss may cost the image, which is noticed when it is opened, and then it
is built again from the cache or the store; it never leads to wrong weights.
"""
