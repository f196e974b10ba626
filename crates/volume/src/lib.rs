//! Named volumes over the engine: bounds, splitting, streams, flushes and replies.
