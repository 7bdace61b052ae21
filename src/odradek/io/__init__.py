"""Ring 3: anyio. Executes what core decides."""
