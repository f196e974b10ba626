//! The control server: HTTP and JSON over a Unix socket, beside the data path.
