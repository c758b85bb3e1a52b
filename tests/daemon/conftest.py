from tests.publisher.world import world

__all__ = ["world"]
