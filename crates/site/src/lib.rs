//! The servers of a site, watched by one of them: which hosts answer, who serves which volume, and
//! what is wrong with the site as a whole, such as a shared volume that no host serves.
//!
//! A watch only looks. It decides nothing: who may write to a disk is up to the storage, and a
//! takeover to an operator or a cluster manager. It asks each host for a short status, `GET
//! /v1/host` at its dashboard, and keeps the last answers.
//!
//! - `hosts` finds the hosts: in the configuration, in DNS (`srv`), or in etcd (`etcd`).
//! - `watch` asks them, in a thread of its own, with names that may never resolve.
//! - `view` is what is known, without clocks and sockets.

mod etcd;
mod found;
mod hosts;
mod srv;
mod view;
mod watch;

pub use watch::{Watch, WatchError};

forebay_types::faults! { WatchError }
