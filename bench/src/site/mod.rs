//! Several servers of one volume, as on several hosts: each of them takes it over from another, and
//! every block is checked as a register over all of them.

pub mod address;
pub mod client;
pub mod node;
pub mod register;
