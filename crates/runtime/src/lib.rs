//! The driver that runs the engine in real time: threads, rings, sockets and the pool's memory.
