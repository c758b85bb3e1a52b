"""vLLM as an engine: what runs in its processes, and what drives them from outside."""
