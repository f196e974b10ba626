//! The NBD protocol, both sides, without any input or output of its own.
