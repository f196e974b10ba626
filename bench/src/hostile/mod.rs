//! Clients that do their worst, a client that behaves beside them, and a server that is to stop
//! all the same.

pub mod crowd;
pub mod script;
pub mod witness;
