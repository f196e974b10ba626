//! The control API: its types, its description and its client.
